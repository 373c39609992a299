"""Lets the wrapped strategy aggregate what the defense accepted, and checks the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from ..core import Defense, Judged, Verdict
from ..ops import row_norms
from .buffers import CombinedBuffers, combine_buffers, is_private, set_buffers
from .node_ids import to_signed
from .reply_checks import ValidReply
from .reply_conversion import ReplyConverter
from .result_checks import check_step, is_average
from .strategy_state import restore_on_failure


@dataclass(frozen=True, eq=False)
class Delegation:
    """A round after the defense has judged it.

    Args:
        strategy: The wrapped strategy.
        defense: The defense that judged the replies.
        defense_aggregates: Whether the strategy gets the aggregate of the defense, instead of the accepted replies.
        converter: For the strategy and the global model.
        replies: All replies that were judged.
        judged: What the filters decided.
        verdict: What the defense decided.
    """

    strategy: Strategy
    defense: Defense
    defense_aggregates: bool
    converter: ReplyConverter
    replies: Sequence[ValidReply]
    judged: Judged
    verdict: Verdict

    @property
    def accepted(self) -> list[ValidReply]:
        replies = {to_signed(reply.node): reply for reply in self.replies}
        kept = self.judged.remaining.weights != 0  # `judged.accepted` would copy their rows
        return [replies[client] for client in self.judged.remaining.clients[kept].tolist()]

    @cached_property
    def buffers(self) -> CombinedBuffers:
        """Empty if the operator leaves them to the strategy or the aggregator."""
        combines = self.defense.combines_buffers
        return combine_buffers(self.converter.model, self.replies) if combines else CombinedBuffers()

    def run(self, server_round: int) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model and the metrics of the strategy. If it fails, its state is as before."""
        buffers, messages, key = self.buffers.arrays, self._build_messages(), self.converter.arrays_key
        for message in messages:
            set_buffers(message.content.array_records[key], buffers)
        with restore_on_failure(self.strategy):
            arrays, metrics = self.strategy.aggregate_train(server_round, messages)
            if arrays is None:
                return None, metrics
            model = self.converter.to_model(arrays)
            if is_average(self.strategy, self.defense.aggregator if self.defense_aggregates else None):
                check_step(self.converter.model, model, self._measure_accepted())
        if not is_private(self.strategy):  # server optimizers are made for weights, not for statistics
            set_buffers(model, buffers)
        return model, metrics

    def _build_messages(self) -> list[Message]:
        if not self.defense_aggregates:
            return self.converter.to_messages(self.accepted, self.judged)
        weights = self.judged.remaining.weights
        params = self.converter.params + self.verdict.update
        return [self.converter.to_combined_message(self.accepted, weights[weights != 0].tolist(), params)]

    def _measure_accepted(self) -> list[float]:
        """The norms of the accepted updates, as filters have rewritten them."""
        if self.judged.rewritten:
            remaining = self.judged.remaining  # `judged.accepted` would copy their rows
            return [float(norm) for norm in row_norms(remaining.trainable())[remaining.weights != 0]]
        return [reply.norm for reply in self.accepted]
