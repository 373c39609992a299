"""Any of Flower's strategies behind a guard and a defense."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from ..aggregators import Mean
from ..cohort import Cohort, TooFewClients, TrustedData
from ..defense import Defense, Filter, Judgment, State, Verdict
from ..layout import Layout
from ..randomness import derive
from ..records import RoundRecord
from .arrays import Form, NDArray, forms_of, own_arrays
from .guard import Answer, Inspection, Lost, inspect, question_of
from .reasons import Reason

log = logging.getLogger("flwr")

METRICS = "metrics"  # the record of metrics in messages that are rebuilt
PREFIX = "cosdefense"  # of what is added to a round's metrics


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
        self._global: dict[str, NDArray] = {}
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
        self._global = own_arrays(arrays)
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
        found = self._inspected(replies, forms_of(self._global), lost)
        if len(found.answers) < self.quorum:
            return self._skipped(found, f"{len(found.answers)} usable replies, the quorum is {self.quorum}")
        cohort = self._cohort(found.answers, server_round)
        try:
            verdict, state, judged = self._judged(cohort)
        except TooFewClients as problem:
            return self._skipped(found, str(problem))
        self.state = state
        if verdict.skipped:
            return self._skipped(found, verdict.skipped, verdict)
        return self._delegated(server_round, found, cohort, verdict, judged)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message], lost: Sequence[Lost] = ()
    ) -> MetricRecord | None:
        """The same guard; every client that answered properly counts the same."""
        found = self._inspected(replies, None, lost)
        if not found.answers:
            return None
        messages = [self._message(answer, {}, answer.metrics, self._claim(answer)) for answer in found.answers]
        try:
            with _drawing(self.seed, "aggregate-evaluate", server_round):
                return self.strategy.aggregate_evaluate(server_round, messages)
        except Exception:  # what clients sent may break somebody's own metric function, not the run
            log.exception(
                "%s could not aggregate the evaluation of round %d", type(self.strategy).__name__, server_round
            )
            return None

    # ---- a round, step by step

    def _inspected(
        self, replies: Iterable[Message], forms: Mapping[str, Form] | None, lost: Sequence[Lost]
    ) -> Inspection:
        found = inspect(replies, question_of(self._asked, forms, self._weighted_by))
        found.refused += lost
        for node, reason, detail in found.refused:
            log.warning("reply of node %d rejected (%s): %s", node, reason, detail)
        return found

    def _cohort(self, answers: Sequence[Answer], server_round: int) -> Cohort:
        layout = Layout.of(self._global, self.head)
        params = _flat(layout, self._global)
        rows = torch.stack([_flat(layout, answer.arrays) for answer in answers]) - params
        cohort = Cohort.of(
            rows, params, layout, torch.tensor([_signed(answer.node) for answer in answers]),
            seed=derive(self.seed, "defense", server_round), trusted_data=self.trusted_data,
        )  # fmt: skip
        weights = torch.tensor([self._claim(answer) for answer in answers], dtype=rows.dtype)
        return replace(cohort, weights=weights)

    def _judged(self, cohort: Cohort) -> tuple[Verdict, State, Cohort]:
        """The verdict, and what is left of the rows before they are combined."""
        rows = _Rows()
        watched = replace(self.defense, filters=(*self.defense.filters, rows))
        verdict, state = watched(cohort, (*self.state[:-1], None, self.state[-1]))
        verdict = replace(verdict, evidence={k: v for k, v in verdict.evidence.items() if k != "_Rows"})
        return verdict, (*state[:-2], state[-1]), rows.seen or cohort.only(verdict.weights != 0)

    def _delegated(
        self, server_round: int, found: Inspection, cohort: Cohort, verdict: Verdict, judged: Cohort
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = {_signed(answer.node): answer for answer in found.answers}
        accepted = [answers[client] for client in judged.clients.tolist()]
        weights = judged.weights.tolist()
        if self.aggregates:
            metrics = _mean_metrics([answer.metrics for answer in accepted], weights)
            messages = [self._message(accepted[0], self._named(cohort, cohort.params + verdict.update), metrics, 1.0)]
        else:
            messages = [
                self._message(answer, self._arrays(answer, cohort, row), answer.metrics, weight)
                for answer, row, weight in zip(accepted, judged.updates, weights, strict=True)
            ]
        before = dict(vars(self.strategy))
        try:
            with _drawing(self.seed, "aggregate", server_round):
                arrays, metrics_record = self.strategy.aggregate_train(server_round, messages)
            result = None if arrays is None else self._fitting(arrays)
        except Exception as error:
            log.exception("%s could not aggregate round %d", type(self.strategy).__name__, server_round)
            vars(self.strategy).update(before)
            return self._skipped(found, f"the wrapped strategy failed: {type(error).__name__}: {error!s:.120}", verdict)
        return result, self._told(found, verdict, None, metrics_record)

    def _arrays(self, answer: Answer, cohort: Cohort, row: torch.Tensor) -> Mapping[str, NDArray]:
        """As the client sent them, unless a filter has rewritten the update."""
        index = cohort.clients.tolist().index(_signed(answer.node))
        if torch.equal(row, cohort.updates[index]):
            return {**answer.arrays, **self._counters()}
        return self._named(cohort, cohort.params + row)

    def _named(self, cohort: Cohort, vector: torch.Tensor) -> Mapping[str, NDArray]:
        tensors = cohort.layout.unflatten(vector)
        return {
            name: tensors[name].numpy().astype(own.dtype) if name in tensors else own
            for name, own in self._global.items()
        }

    def _counters(self) -> dict[str, NDArray]:
        """Integers do not travel: averaging a counter means nothing, and a client may send any."""
        return {name: own for name, own in self._global.items() if not np.issubdtype(own.dtype, np.floating)}

    def _fitting(self, arrays: ArrayRecord) -> ArrayRecord:
        """The new model in the form of the old one; an error if it cannot be."""
        fitted = {}
        for name, own in self._global.items():
            array = np.asarray(arrays[name].numpy())
            if array.shape != own.shape:
                raise ValueError(f"{name} has shape {array.shape} instead of {own.shape}")
            array = np.asarray(array if np.issubdtype(own.dtype, np.floating) else np.rint(array)).astype(own.dtype)
            if np.issubdtype(own.dtype, np.floating) and not np.isfinite(array).all():
                raise ValueError(f"{name} is not finite")
            fitted[name] = Array(array)
        return ArrayRecord(fitted)

    def _message(
        self, answer: Answer, arrays: Mapping[str, NDArray], metrics: Mapping[str, Any], weight: float
    ) -> Message:
        """A clean message with only what is known."""
        content = RecordDict({METRICS: MetricRecord({**metrics, self._weighted_by: weight})})
        if arrays:
            content[self._arrays_key] = ArrayRecord(
                {name: Array(np.asarray(a, order="C")) for name, a in arrays.items()}
            )
        return make_message(metadata=answer.message.metadata, content=content)

    def _claim(self, answer: Answer) -> float:
        return min(answer.examples, float(self.max_examples)) if self.weigh_by_examples else 1.0

    @property
    def _weighted_by(self) -> str:
        return str(_attribute(self.strategy, "weighted_by_key", "num-examples"))

    @property
    def _arrays_key(self) -> str:
        return str(_attribute(self.strategy, "arrayrecord_key", "arrays"))

    # ---- what is told about it

    def _skipped(self, found: Inspection, why: str, verdict: Verdict | None = None) -> tuple[None, MetricRecord]:
        log.warning("the model stays as it is: %s", why)
        return None, self._told(found, verdict, why, None)

    def _told(
        self, found: Inspection, verdict: Verdict | None, skipped: str | None, metrics: MetricRecord | None
    ) -> MetricRecord:
        """The round's record, and numbers beside those that clients sent."""
        nodes = [answer.node for answer in found.answers]
        weights = verdict.weights.tolist() if verdict else [0.0] * len(nodes)
        reasons = [None if weight else Reason.DEFENSE for weight in weights] if verdict else [None] * len(nodes)
        for node, reason in zip(nodes, reasons, strict=True):
            if reason:
                log.warning("reply of node %d rejected (%s)", node, reason)
        scores = {name: values.tolist() for name, values in verdict.evidence.items()} if verdict else {}
        blank = [None] * len(found.refused)
        self.record = RoundRecord(
            round=0,
            clients=(*nodes, *(node for node, _, _ in found.refused)),
            weights=(*weights, *(0.0 for _ in found.refused)),
            skipped=skipped,
            scores={name: (*(_known(value) for value in values), *blank) for name, values in scores.items()},
            reasons=(*map(_text, reasons), *(str(reason) for _, reason, _ in found.refused)),
        )
        told = MetricRecord(dict(metrics) if metrics else {})
        told[f"{PREFIX}-received"] = len(nodes) + len(found.refused)
        told[f"{PREFIX}-accepted"] = sum(weight != 0 for weight in weights)
        told[f"{PREFIX}-skipped"] = int(skipped is not None)
        for reason in Reason:
            count = sum(text == reason for text in self.record.reasons)
            if count:
                told[f"{PREFIX}-rejected-{reason}"] = count
        return told

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


class _Rows(Filter):
    """Accepts everybody and remembers the rows: what the aggregator gets to see."""

    def __init__(self) -> None:
        self.seen: Cohort | None = None

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        self.seen = cohort
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state


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


def _flat(layout: Layout, arrays: Mapping[str, NDArray]) -> torch.Tensor:
    wide = any(array.dtype == np.float64 for array in arrays.values())
    return layout.flatten(arrays).to(torch.float64 if wide else torch.float32)


def _signed(node: int) -> int:
    """Identities have 64 bits without a sign; a tensor's have one."""
    return node - 2**64 if node >= 2**63 else node


def _mean_metrics(metrics: Sequence[Mapping[str, Any]], weights: Sequence[float]) -> dict[str, Any]:
    shares = np.array(weights) / sum(weights)
    return {
        key: [float(v) for v in shares @ np.array([m[key] for m in metrics])]
        if isinstance(metrics[0][key], list)
        else float(shares @ np.array([m[key] for m in metrics]))
        for key in metrics[0]
    }


def _attribute(strategy: Strategy, name: str, default: str) -> Any:
    """Of the strategy, or of the one it wraps itself."""
    while strategy is not None:
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)  # type: ignore[assignment]
    return default


def _known(value: float) -> float | None:
    return None if value != value else value


def _text(reason: Reason | None) -> str | None:
    return None if reason is None else str(reason)
