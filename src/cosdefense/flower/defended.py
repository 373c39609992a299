"""Puts reply checks and a defense in front of any Flower strategy."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..aggregators import Mean
from ..core import (
    Cohort,
    Defense,
    Filter,
    Judged,
    MissingTrustedData,
    State,
    TrustedData,
    UnknownLayer,
    Verdict,
    derive,
)
from ..runs.observer import RoundObserver, RoundObservers
from ..runs.records import RoundRecord
from ..runs.safe_text import log_failure, printable
from .arrays import count_bytes, to_numpy
from .buffers import combine_buffers, is_private, replace_buffers
from .node_ids import to_signed
from .node_names import Names, NodeNames
from .pull_threads import PullLimits
from .reasons import Rejection, quote_error
from .reply_checks import CheckedReplies, Request, ValidReply, check_replies
from .reply_conversion import ReplyConverter, build_metrics_message
from .round_log import log_checked, log_verdict
from .round_record import build_evaluate_metrics, build_record, build_train_metrics
from .sent_model import SentModel
from .strategy_inputs import StrategyMetrics
from .strategy_state import describe_strategy, fingerprint_strategy, restore_on_failure

log = logging.getLogger("flwr")


class Defended(Strategy):
    """Wraps a strategy: replies that are malformed or that the defense rejects do not reach it.

    With a `Filter`, the wrapped strategy gets the accepted replies. With a whole `Defense`, it gets the aggregate of
    the defense as a single reply. No reply can end the run, delay a round past its deadline, or make the model
    anything but finite numbers of the right shape.
    """

    def __init__(
        self,
        strategy: Strategy,
        defense: Defense | Filter,
        *,
        head: str | None = None,
        trusted_data: TrustedData | None = None,
        quorum: int = 2,
        deadline: float | None = None,
        checkpoint_dir: Path | str | None = None,
        weigh_by_examples: bool = False,
        max_examples: float = 10_000.0,
        seed: int | None = None,
        observers: Sequence[RoundObserver] = (),
        pull_limits: PullLimits | None = None,
        node_names: Names | Path | str | None = None,
    ) -> None:
        if quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {quorum}")
        if deadline is not None and not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")
        if not max_examples > 0:
            raise ValueError(f"max_examples must be positive, got {max_examples}")
        self.strategy = strategy
        self.defense = defense if isinstance(defense, Defense) else Defense((defense,), Mean())
        _refuse_hooks(self.defense)
        self.defense_aggregates = isinstance(defense, Defense)  # otherwise the wrapped strategy aggregates
        self.head, self.trusted_data = head, trusted_data
        self.quorum, self.deadline, self.pull_limits = quorum, deadline, pull_limits
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self.observers, self.names = RoundObservers(observers), NodeNames(node_names)
        self.weigh_by_examples, self.max_examples = weigh_by_examples, max_examples
        # Decides which nodes are sampled and which noise is drawn, so it must stay secret.
        self.seed, self.has_own_seed = secrets.randbits(62) if seed is None else seed, seed is not None
        self.constructed = fingerprint_strategy(strategy)  # to tell its settings from its state
        self.state: State = self.defense.init()
        self.record: RoundRecord | None = None  # of the last aggregated round
        self._converter: ReplyConverter | None = None  # for the model that was sent last
        self._sent: list[Message] = []
        self.n_bytes: dict[str, int] = {}  # of the arrays that this round sent and received

    def summary(self) -> None:
        log.info("\t├──> Defended by %s", self.defense)
        log.info(
            "\t│\t└── quorum %d | deadline %s | weigh by examples: %s",
            self.quorum,
            self.deadline,
            self.weigh_by_examples,
        )
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy. The messages are kept: replies are compared with them."""
        self._converter = ReplyConverter.of(self.strategy, to_numpy(arrays), self.head)
        with _seed_global_generators(self.seed, "train", server_round):
            self._sent = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self.names.look_up(grid, [message.metadata.dst_node_id for message in self._sent])
        self.n_bytes = {"train-sent": len(self._sent) * count_bytes(arrays)}
        return self._sent

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with _seed_global_generators(self.seed, "evaluate", server_round):
            self._sent = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self.n_bytes["evaluate-sent"] = len(self._sent) * count_bytes(arrays)
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], missing: Sequence[Rejection] = ()
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, judge, delegate. `(None, …)` keeps the model. `missing`: replies that the grid could not deliver."""
        if self._converter is None:
            raise RuntimeError(
                "aggregate_train needs configure_train before it: replies are compared with the messages sent"
            )
        converter = self._converter
        checked = self._check(replies, converter.model, missing)
        self.n_bytes["train-received"] = checked.n_bytes
        if len(checked.valid) < self.quorum:
            return self._skip(checked, f"{len(checked.valid)} usable replies, the quorum is {self.quorum}")
        cohort = self._build_cohort(converter, checked.valid, server_round)
        try:
            judged, verdict, self.state = self.defense.run_round(cohort, self.state, combine=self.defense_aggregates)
        except (MissingTrustedData, UnknownLayer):  # not caused by any client
            raise
        except Exception as error:  # numbers that a rule cannot handle skip the round, they do not end the run
            log_failure(log, error, "%s could not judge round %d", self.defense, server_round)
            return self._skip(checked, f"the defense failed: {quote_error(error)}")
        if verdict.skipped:
            return self._skip(checked, verdict.skipped, verdict)
        return self._delegate(server_round, converter, checked, judged, verdict)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message], missing: Sequence[Rejection] = ()
    ) -> MetricRecord | None:
        """The same checks. All valid replies count."""
        checked, key = self._check(replies, None, missing), StrategyMetrics.of(self.strategy).weight
        messages = [
            build_metrics_message(reply, reply.metrics, key, self._get_weight(reply)) for reply in checked.valid
        ]
        metrics: MetricRecord | None = None
        try:
            if messages:
                with (
                    _seed_global_generators(self.seed, "aggregate-evaluate", server_round),
                    restore_on_failure(self.strategy),
                ):
                    metrics = self.strategy.aggregate_evaluate(server_round, messages)
        except Exception as error:  # metrics of clients may break a custom metric function; the run continues
            name = describe_strategy(self.strategy)
            log_failure(log, error, "%s could not aggregate the evaluation of round %d", name, server_round)
        return build_evaluate_metrics(checked, metrics)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        resume: bool = False,
    ) -> Result:
        """As `Strategy.start`, with a `GuardedGrid` and a checkpoint after every round."""
        from .federation import RoundSettings, run_federation

        settings = RoundSettings(
            timeout, train_config or ConfigRecord(), evaluate_config or ConfigRecord(), evaluate_fn
        )
        try:
            return run_federation(self, grid, initial_arrays, num_rounds, settings, resume)
        finally:
            self.observers.ended()

    # ---- the steps of a round

    def _check(
        self, replies: Iterable[Message], model: SentModel | None, missing: Sequence[Rejection]
    ) -> CheckedReplies:
        reads = StrategyMetrics.of(self.strategy)
        if model is None:  # only training computes with more than the weight
            reads = StrategyMetrics(reads.weight)
        checked = check_replies(replies, Request.of(self._sent, model, reads))
        checked.rejected += missing
        step = "aggregate_evaluate" if model is None else "aggregate_train"
        log_checked(step, len(checked.valid), checked.rejected, self.names)
        return checked

    def _build_cohort(self, converter: ReplyConverter, replies: Sequence[ValidReply], server_round: int) -> Cohort:
        """If the wrapped strategy aggregates, rows hold only the tensors that the filters look at."""
        names = None if self.defense_aggregates else self.defense.select_layers(converter.layout)
        model = converter.model.only(names)
        return Cohort.of(
            model.compute_updates([reply.arrays for reply in replies]),
            model.params,
            model.layout,
            torch.tensor([to_signed(reply.node) for reply in replies]),
            weights=torch.tensor([self._get_weight(reply) for reply in replies], dtype=torch.float64),
            seed=derive(self.seed, "defense", server_round),
            trusted_data=self.trusted_data,
        )

    def _get_weight(self, reply: ValidReply) -> float:
        return min(reply.examples, float(self.max_examples)) if self.weigh_by_examples else 1.0

    def _delegate(
        self, server_round: int, converter: ReplyConverter, checked: CheckedReplies, judged: Judged, verdict: Verdict
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the wrapped strategy aggregate the accepted replies, or the aggregate of the defense."""
        replies = {to_signed(reply.node): reply for reply in checked.valid}
        kept = judged.remaining.weights != 0  # `judged.accepted` would copy their rows
        accepted = [replies[client] for client in judged.remaining.clients[kept].tolist()]
        if self.defense_aggregates:
            weights, params = judged.remaining.weights[kept].tolist(), converter.params + verdict.update
            messages = [converter.to_combined_message(accepted, weights, params)]
        else:
            messages = converter.to_messages(accepted, judged)
        buffers = combine_buffers(converter.model, checked.valid) if self.defense.combines_buffers else {}
        for message in messages if buffers else ():
            message.content[converter.arrays_key] = replace_buffers(message.content[converter.arrays_key], buffers)
        name = describe_strategy(self.strategy)
        try:
            with _seed_global_generators(self.seed, "aggregate", server_round), restore_on_failure(self.strategy):
                arrays, metrics = self.strategy.aggregate_train(server_round, messages)
                model = None if arrays is None else converter.to_model(arrays)
        except Exception as error:
            log_failure(log, error, "%s could not aggregate round %d", name, server_round)
            return self._skip(checked, f"the wrapped strategy failed: {quote_error(error)}", verdict)
        if model is None:
            return self._skip(checked, f"{name} returned no model", verdict)
        if buffers and not is_private(self.strategy):  # server optimizers are made for weights, not for statistics
            model = replace_buffers(model, buffers)
        return model, self._record_round(checked, verdict, None, metrics)

    def _skip(self, checked: CheckedReplies, reason: str, verdict: Verdict | None = None) -> tuple[None, MetricRecord]:
        log.warning("round skipped, the model stays as it is: %s", printable(reason))
        return None, self._record_round(checked, verdict, reason, None)

    def _record_round(
        self, checked: CheckedReplies, verdict: Verdict | None, skipped: str | None, metrics: MetricRecord | None
    ) -> MetricRecord:
        self.record = build_record(checked, verdict, skipped)
        log_verdict(self.record, self.names)  # rejections before the defense were logged when they were found
        return build_train_metrics(self.record, metrics)


def _refuse_hooks(defense: Defense) -> None:
    if defense.hooks:
        names = ", ".join(type(hook).__name__ for hook in defense.hooks)
        raise ValueError(
            f"Defended cannot run client hooks, got {names}: hooks run while clients train, and this is the server. "
            "Run them in the training code of your ClientApp, and pass a Defense without hooks"
        )


@contextmanager
def _seed_global_generators(seed: int, *purpose: str | int) -> Iterator[None]:
    """Strategies draw from Python's and numpy's global generators. Seeded here, their state need not be saved."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(derive(seed, *purpose))
    np.random.seed(derive(seed, *purpose) % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
