"""Puts reply checks and a defense in front of any Flower strategy."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..aggregators import Mean
from ..core import (
    Defense,
    Filter,
    State,
    TrustedData,
)
from ..runs.observer import RoundObserver, RoundObservers
from ..runs.records import RoundRecord
from ..runs.safe_text import log_failure
from .arrays import count_bytes, to_numpy
from .buffers import is_private
from .global_generators import seed_global_generators
from .node_names import Names, NodeNames
from .norm_guard import MAX_RATIO, NormGuard
from .pull_threads import PullLimits
from .reasons import Rejection
from .reply_checks import CheckedReplies, Request, ValidReply, check_replies
from .reply_conversion import ReplyConverter, build_metrics_message
from .round_log import log_checked
from .round_record import build_evaluate_metrics
from .secure_setup import build_leader
from .sent_model import SentModel
from .strategy_inputs import StrategyMetrics
from .strategy_state import describe_strategy, fingerprint_strategy, restore_on_failure
from .training_round import TrainingRound

if TYPE_CHECKING:  # they need the extra "secure"
    from ..secure.leader import HelperLink

log = logging.getLogger("flwr")


class Defended(Strategy):
    """Wraps a strategy: replies that are malformed or that the defense rejects do not reach it.

    With a `Filter`, the wrapped strategy gets the accepted replies. With a whole `Defense`, it gets the aggregate of
    the defense as a single reply. No reply can end the run, delay a round past its deadline, or make the model
    anything but finite numbers of the right shape.

    With `cosdefense.secure.Secure` and a `helper`, it sees no update: clients need `secure_mod`, and the server says
    which configuration the run has (`run_config=context.run_config`). See docs/secure.md.
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
        max_norm_ratio: float | None = MAX_RATIO,
        seed: int | None = None,
        observers: Sequence[RoundObserver] = (),
        pull_limits: PullLimits | None = None,
        node_names: Names | Path | str | None = None,
        helper: HelperLink | None = None,
        run_config: Mapping[str, object] | None = None,
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
        self.leader = build_leader(self.defense, helper, run_config, strategy, weigh_by_examples, trusted_data)
        self.defense_aggregates = isinstance(defense, Defense)  # otherwise the wrapped strategy aggregates
        self.head, self.trusted_data = head, trusted_data
        self.quorum, self.deadline, self.pull_limits = quorum, deadline, pull_limits
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self.observers, self.names = RoundObservers(observers), NodeNames(node_names)
        self.weigh_by_examples, self.max_examples = weigh_by_examples, max_examples
        # Decides which nodes are sampled and which noise is drawn, so it must stay secret.
        self.seed, self.has_own_seed = secrets.randbits(62) if seed is None else seed, seed is not None
        self.constructed = fingerprint_strategy(strategy)  # to tell its settings from its state
        self.norm_guard = NormGuard(None if self.leader else max_norm_ratio)  # a leader does not see norms
        self.state: State = self.defense.init()
        self.record: RoundRecord | None = None  # of the last aggregated round
        self._converter: ReplyConverter | None = None  # for the model that was sent last
        self.sent: list[Message] = []  # the last messages to nodes
        self.n_bytes: dict[str, int] = {}  # of the arrays that this round sent and received

    def summary(self) -> None:
        log.info("\t├──> Defended by %s", self.defense)
        log.info(
            "\t│\t└── quorum %d | deadline %s | weigh by examples: %s | largest ratio of norms: %s",
            self.quorum,
            self.deadline,
            self.weigh_by_examples,
            self.norm_guard.max_ratio,
        )
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the wrapped strategy. The messages are kept: replies are compared with them."""
        self._converter = ReplyConverter.of(self.strategy, to_numpy(arrays), self.head)
        with seed_global_generators(self.seed, "train", server_round):
            self.sent = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if self.leader:
            self.sent = self.leader.prepare(self.sent, self._converter.model, self.state, self.quorum)
        self.names.look_up(grid, [message.metadata.dst_node_id for message in self.sent])
        self.n_bytes = {"train-sent": len(self.sent) * count_bytes(arrays)}
        return self.sent

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with seed_global_generators(self.seed, "evaluate", server_round):
            self.sent = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self.n_bytes["evaluate-sent"] = len(self.sent) * count_bytes(arrays)
        return self.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], missing: Sequence[Rejection] = ()
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check, judge, delegate. `(None, …)` keeps the model. `missing`: replies that the grid could not deliver."""
        if self._converter is None:
            raise RuntimeError(
                "aggregate_train needs configure_train before it: replies are compared with the messages sent"
            )
        converter = self._converter
        if self.leader:
            from .secure_round import aggregate_reports

            return aggregate_reports(self, server_round, converter, self.leader, replies, missing)
        checked = self._check(replies, converter.model, missing)
        self.n_bytes["train-received"] = checked.n_bytes
        return TrainingRound(self, server_round, converter).aggregate(checked)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message], missing: Sequence[Rejection] = ()
    ) -> MetricRecord | None:
        """The same checks. All valid replies count."""
        checked, key = self._check(replies, None, missing), StrategyMetrics.of(self.strategy).weight
        messages = [build_metrics_message(reply, reply.metrics, key, self.get_weight(reply)) for reply in checked.valid]
        metrics: MetricRecord | None = None
        try:
            if messages:
                with (
                    seed_global_generators(self.seed, "aggregate-evaluate", server_round),
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
        checked = check_replies(replies, Request.of(self.sent, model, reads))
        checked.rejected += missing
        if model is not None:
            self._reject_by_norm(checked, model)
        step = "aggregate_evaluate" if model is None else "aggregate_train"
        log_checked(step, len(checked.valid), checked.rejected, self.names)
        return checked

    def _reject_by_norm(self, checked: CheckedReplies, model: SentModel) -> None:
        self.norm_guard.reject_long(checked, model)
        if is_private(self.strategy) and not self.defense_aggregates:
            self.norm_guard.reject_short(checked)

    def get_weight(self, reply: ValidReply) -> float:
        """How much a reply counts before the defense judges it."""
        return min(reply.examples, float(self.max_examples)) if self.weigh_by_examples else 1.0


def _refuse_hooks(defense: Defense) -> None:
    if defense.hooks:
        names = ", ".join(type(hook).__name__ for hook in defense.hooks)
        raise ValueError(
            f"Defended cannot run client hooks, got {names}: hooks run while clients train, and this is the server. "
            "Run them in the training code of your ClientApp, and pass a Defense without hooks"
        )
