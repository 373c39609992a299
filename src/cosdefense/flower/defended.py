"""Any of Flower's strategies behind a guard and a defense."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..aggregators import Mean
from ..core import (
    Aggregator,
    Cohort,
    Defense,
    Filter,
    MissingTrustedData,
    State,
    TooFewClients,
    TrustedData,
    Verdict,
    derive,
)
from ..runs.records import RoundRecord
from .arrays import Form, forms_of, own_arrays
from .exchange import Exchange, metrics_reply, weighted_by
from .guard import Answer, Inspection, Lost, inspect, question_of, quoted
from .reasons import Reason
from .round_record import evaluate_metrics, record_of, train_metrics
from .strategy_state import kinds_of, undone_on_failure

log = logging.getLogger("flwr")


class Defended(Strategy):
    """Wraps a strategy: replies that are malformed or that the defense rejects never reach it.

    With a `Filter` the accepted replies go to the wrapped strategy; with a whole `Defense` its aggregate does, as the
    one reply. A client can lose its own say, never the round, the run or the model.
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
    ) -> None:
        if quorum < 1:
            raise ValueError(f"quorum must be at least 1, got {quorum}")
        if deadline is not None and not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")
        if not max_examples > 0:
            raise ValueError(f"max_examples must be positive, got {max_examples}")
        self.strategy = strategy
        self.defense = defense if isinstance(defense, Defense) else Defense((defense,), Mean())
        self.aggregates = isinstance(defense, Defense)  # otherwise the wrapped strategy does
        self.head, self.trusted_data = head, trusted_data
        self.quorum, self.deadline = quorum, deadline
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self.weigh_by_examples, self.max_examples = weigh_by_examples, max_examples
        # Decides which nodes are sampled and what noise is drawn: nobody else may know it.
        self.seed = secrets.randbits(62) if seed is None else seed
        self.state: State = self.defense.init()
        self.record: RoundRecord | None = None  # of the round that was aggregated last
        self._exchange: Exchange | None = None  # about the model that was sent last
        self._asked: list[Message] = []

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
        """Remember what is sent to whom; replies are compared with it."""
        self._exchange = Exchange.of(self.strategy, own_arrays(arrays), self.head)
        with _drawing(self.seed, "train", server_round):
            self._asked = list(self.strategy.configure_train(server_round, arrays, config, grid))
        return self._asked

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        with _drawing(self.seed, "evaluate", server_round):
            self._asked = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], lost: Sequence[Lost] = ()
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Guard, judge, delegate. `(None, …)` keeps the model as it is. Lost: what the grid could not deliver."""
        if self._exchange is None:
            raise RuntimeError(
                "aggregate_train needs configure_train before it: replies are compared with what was sent"
            )
        exchange = self._exchange
        found = self._inspected(replies, forms_of(exchange.arrays), lost)
        if len(found.answers) < self.quorum:
            return self._skipped(found, f"{len(found.answers)} usable replies, the quorum is {self.quorum}")
        cohort = self._cohort(exchange, found.answers, server_round)
        try:
            verdict, self.state, judged = self._judged(cohort)
        except MissingTrustedData:  # nothing that a client did
            raise
        except TooFewClients as problem:
            return self._skipped(found, str(problem))
        except Exception as error:  # numbers that a rule did not expect cost the round, not the run
            log.exception("%s could not judge round %d", self.defense, server_round)
            return self._skipped(found, f"the defense failed: {quoted(error)}")
        if verdict.skipped:
            return self._skipped(found, verdict.skipped, verdict)
        return self._delegated(server_round, exchange, found, cohort, verdict, judged)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message], lost: Sequence[Lost] = ()
    ) -> MetricRecord | None:
        """The same guard; every client that answered properly counts the same."""
        found, key = self._inspected(replies, None, lost), weighted_by(self.strategy)
        messages = [metrics_reply(answer, answer.metrics, key, self._claim(answer)) for answer in found.answers]
        metrics: MetricRecord | None = None
        try:
            if messages:
                with _drawing(self.seed, "aggregate-evaluate", server_round), undone_on_failure(self.strategy):
                    metrics = self.strategy.aggregate_evaluate(server_round, messages)
        except Exception:  # what clients sent may break somebody's own metric function, not the run
            log.exception("%s could not aggregate the evaluation of round %d", kinds_of(self.strategy), server_round)
        return evaluate_metrics(found, metrics)

    # ---- a round, step by step

    def _inspected(
        self, replies: Iterable[Message], forms: Mapping[str, Form] | None, lost: Sequence[Lost]
    ) -> Inspection:
        found = inspect(replies, question_of(self._asked, forms, weighted_by(self.strategy)))
        found.refused += lost
        for node, reason, detail in found.refused:
            log.warning("reply of node %d rejected (%s): %s", node, reason, detail)
        return found

    def _cohort(self, exchange: Exchange, answers: Sequence[Answer], server_round: int) -> Cohort:
        rows = exchange.updates(answers)
        cohort = Cohort.of(
            rows, exchange.params, exchange.layout, torch.tensor([_signed(answer.node) for answer in answers]),
            seed=derive(self.seed, "defense", server_round), trusted_data=self.trusted_data,
        )  # fmt: skip
        weights = torch.tensor([self._claim(answer) for answer in answers], dtype=rows.dtype)
        return replace(cohort, weights=weights)

    def _judged(self, cohort: Cohort) -> tuple[Verdict, State, Cohort]:
        """The verdict, and what is left of the rows before they are combined."""
        last = _Last(self.defense.aggregator if self.aggregates else None)
        verdict, state = replace(self.defense, aggregator=last)(cohort, self.state)
        return verdict, state, last.seen or cohort.only(verdict.weights != 0)

    def _delegated(
        self,
        server_round: int,
        exchange: Exchange,
        found: Inspection,
        cohort: Cohort,
        verdict: Verdict,
        judged: Cohort,
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = {_signed(answer.node): answer for answer in found.answers}
        accepted = [answers[client] for client in judged.clients.tolist()]
        if self.aggregates:
            params = cohort.params + verdict.update
            messages = [exchange.combined_reply(accepted, judged.weights.tolist(), params)]
        else:
            messages = exchange.replies(accepted, cohort, judged)
        try:
            with _drawing(self.seed, "aggregate", server_round), undone_on_failure(self.strategy):
                arrays, metrics = self.strategy.aggregate_train(server_round, messages)
                model = None if arrays is None else exchange.model_of(arrays)
        except Exception as error:
            log.exception("%s could not aggregate round %d", kinds_of(self.strategy), server_round)
            return self._skipped(found, f"the wrapped strategy failed: {quoted(error)}", verdict)
        if model is None:
            return self._skipped(found, f"{kinds_of(self.strategy)} returned no model", verdict)
        return model, self._told(found, verdict, None, metrics)

    def _claim(self, answer: Answer) -> float:
        return min(answer.examples, float(self.max_examples)) if self.weigh_by_examples else 1.0

    def _skipped(self, found: Inspection, why: str, verdict: Verdict | None = None) -> tuple[None, MetricRecord]:
        log.warning("the model stays as it is: %s", why)
        return None, self._told(found, verdict, why, None)

    def _told(
        self, found: Inspection, verdict: Verdict | None, skipped: str | None, metrics: MetricRecord | None
    ) -> MetricRecord:
        self.record = record_of(found, verdict, skipped)
        for node, reason in zip(self.record.clients, self.record.reasons, strict=True):
            if reason == Reason.DEFENSE:  # the others were logged when they were refused
                log.warning("reply of node %d rejected (%s)", node, reason)
        return train_metrics(self.record, metrics)

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
        """As `Strategy.start`, over a grid that survives its messages; checkpointed after every round."""
        from .federation import federate

        return federate(
            self, grid, initial_arrays, num_rounds, timeout, train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(), evaluate_fn, resume,
        )  # fmt: skip


class _Last(Aggregator):
    """Remembers what is left to be combined. Where the wrapped strategy combines it, nothing moves here."""

    def __init__(self, inner: Aggregator | None) -> None:
        self.inner = inner
        self.seen: Cohort | None = None

    def __call__(self, cohort: Cohort, state: State) -> tuple[torch.Tensor, State]:
        self.seen = cohort
        return self.inner(cohort, state) if self.inner else (torch.zeros_like(cohort.params), state)


@contextmanager
def _drawing(seed: int, *purpose: str | int) -> Iterator[None]:
    """Strategies draw from the global streams: seeded for a while, so that nothing about them need be saved."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(derive(seed, *purpose))
    np.random.seed(derive(seed, *purpose) % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def _signed(node: int) -> int:
    """Identities have 64 bits without a sign; a tensor's have one."""
    return node - 2**64 if node >= 2**63 else node
