"""One round of training: judge the replies, let the wrapped strategy aggregate, record what happened."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord, MetricRecord

from ..core import Cohort, MissingTrustedData, UnknownLayer, Verdict, derive
from ..runs.safe_text import log_failure, printable
from .delegation import Delegation
from .global_generators import seed_global_generators
from .node_ids import to_signed
from .reasons import Reason, Rejection, quote_error
from .reply_checks import CheckedReplies, ValidReply
from .reply_conversion import ReplyConverter
from .result_checks import find_longest
from .round_log import log_rejection, log_unusual_buffers, log_verdict
from .round_record import build_record, build_train_metrics
from .strategy_state import UnusableResultError, describe_strategy

if TYPE_CHECKING:
    from .defended import Defended

log = logging.getLogger("flwr")

Outcome = tuple[ArrayRecord | None, MetricRecord | None]  # the new model (None: it stays as it is) and the metrics


class UnusableRoundError(Exception):
    """The result of a round is not finite, or far from all accepted updates."""

    def __init__(self, problem: str, verdict: Verdict, accepted: Sequence[ValidReply]) -> None:
        super().__init__(problem)
        self.verdict, self.accepted = verdict, accepted


@dataclass(frozen=True, eq=False)
class TrainingRound:
    """A round of `Defended` after its replies were checked. It changes the state and the record of `defended`."""

    defended: Defended
    server_round: int
    converter: ReplyConverter

    def aggregate(self, checked: CheckedReplies) -> Outcome:
        """Judge and aggregate; if the result is unusable, once more without the longest accepted update."""
        before = self.defended.state
        try:
            return self._judge_and_delegate(checked)
        except UnusableRoundError as problem:
            self.defended.state = before
            return self._repeat(checked, problem)

    def _repeat(self, checked: CheckedReplies, problem: UnusableRoundError) -> Outcome:
        """If this does not help, that update was not the cause, or not the only one: the round is skipped."""
        before, longest = self.defended.state, find_longest(problem.accepted)
        rejection = Rejection(longest.node, Reason.RESULT, str(problem))
        others = replace(
            checked,
            valid=[reply for reply in checked.valid if reply is not longest],
            rejected=[*checked.rejected, rejection],
        )
        try:
            model, metrics = self._judge_and_delegate(others)
        except UnusableRoundError:
            model, metrics = None, None
        if model is None:
            self.defended.state = before
            return self._skip(checked, str(problem), problem.verdict)
        log_rejection(rejection, self.defended.names)
        return model, metrics

    def _judge_and_delegate(self, checked: CheckedReplies) -> Outcome:
        """Raises `UnusableRoundError` if the accepted updates lead to a result that is not usable."""
        defended, number = self.defended, self.server_round
        if len(checked.valid) < defended.quorum:
            return self._skip(checked, f"{len(checked.valid)} usable replies, the quorum is {defended.quorum}")
        defense, aggregates = defended.defense, defended.defense_aggregates
        cohort = self._build_cohort(checked.valid)
        try:
            judged, verdict, defended.state = defense.run_round(cohort, defended.state, combine=aggregates)
        except (MissingTrustedData, UnknownLayer):  # not caused by any client
            raise
        except Exception as error:  # numbers that a rule cannot handle skip the round, they do not end the run
            log_failure(log, error, "%s could not judge round %d", defense, number)
            return self._skip(checked, f"the defense failed: {quote_error(error)}")
        work = Delegation(defended.strategy, defense, aggregates, self.converter, checked.valid, judged, verdict)
        if judged.skipped is None and verdict.skipped:  # the combined update is not finite
            raise UnusableRoundError(verdict.skipped, verdict, work.accepted)
        if verdict.skipped:
            return self._skip(checked, verdict.skipped, verdict)
        return self._delegate(checked, work)

    def _delegate(self, checked: CheckedReplies, work: Delegation) -> Outcome:
        name, verdict = describe_strategy(work.strategy), work.verdict
        try:
            with seed_global_generators(self.defended.seed, "aggregate", self.server_round):
                model, metrics = work.run(self.server_round)
        except UnusableResultError as error:
            raise UnusableRoundError(f"the result of {name} is unusable: {error}", verdict, work.accepted) from error
        except Exception as error:
            log_failure(log, error, "%s could not aggregate round %d", name, self.server_round)
            return self._skip(checked, f"the wrapped strategy failed: {quote_error(error)}", verdict)
        if model is None:
            return self._skip(checked, f"{name} returned no model", verdict)
        self._remember_norms(work)
        log_unusual_buffers(work.buffers.unusual, self.defended.names)
        notes = {"buffers": tuple(work.buffers.unusual)} if work.buffers.unusual else {}
        return model, self._record(checked, verdict, None, metrics, notes)

    def _remember_norms(self, work: Delegation) -> None:
        self.defended.norm_guard.remember([reply.norm for reply in work.accepted])

    def _build_cohort(self, replies: Sequence[ValidReply]) -> Cohort:
        """If the wrapped strategy aggregates, rows hold only the tensors that the filters look at."""
        defended = self.defended
        names = None if defended.defense_aggregates else defended.defense.select_layers(self.converter.layout)
        model = self.converter.model.only(names)
        return Cohort.of(
            model.compute_updates([reply.arrays for reply in replies]),
            model.params,
            model.layout,
            torch.tensor([to_signed(reply.node) for reply in replies]),
            weights=torch.tensor([defended.get_weight(reply) for reply in replies], dtype=torch.float64),
            seed=derive(defended.seed, "defense", self.server_round),
            trusted_data=defended.trusted_data,
        )

    def _skip(self, checked: CheckedReplies, reason: str, verdict: Verdict | None = None) -> Outcome:
        log.warning("round skipped, the model stays as it is: %s", printable(reason))
        return None, self._record(checked, verdict, reason, None)

    def _record(
        self,
        checked: CheckedReplies,
        verdict: Verdict | None,
        skipped: str | None,
        metrics: MetricRecord | None,
        notes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> MetricRecord:
        record = self.defended.record = build_record(checked, verdict, skipped, notes)
        log_verdict(record, self.defended.names)  # rejections before the defense were logged when they were found
        return build_train_metrics(record, metrics)
