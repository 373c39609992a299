"""A run as it is watched: totals, and the recent past of every node. Its size does not grow with the run."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ..runs.records import RoundRecord

WINDOW = 50  # replies of each node that are remembered, and evaluations
MAX_NODES = 10_000  # remembered; then those that were not seen for longest are forgotten
MAX_REASONS = 50  # counted by name; the reasons of this package are fewer
ACCEPTED, UNJUDGED, OTHER = "accepted", "not judged", "other"
SILENT = frozenset({"late", "unsent"})  # the reasons for which there is no reply

Number = TypeVar("Number", int, float)


class Reply(NamedTuple):
    """What became of one reply, and of the others in its round."""

    outcome: str
    n_others: int
    n_others_rejected: int


@dataclass
class NodeHistory:
    """How often a node was asked, and what became of its replies."""

    first_round: int
    name: str = ""  # the operator's, if there is one
    last_round: int = 0
    n_asked: int = 0
    n_accepted: int = 0
    n_silent: int = 0
    silent_in_a_row: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    outcomes: deque[str] = field(default_factory=lambda: deque(maxlen=WINDOW))  # all
    replies: deque[Reply] = field(default_factory=lambda: deque(maxlen=WINDOW))  # those that were judged
    scores: Mapping[str, float] = field(default_factory=dict)  # of the last reply, by filter

    def add(self, number: int, reply: Reply, scores: Mapping[str, float]) -> None:
        outcome = reply.outcome
        is_silent = outcome in SILENT
        self.last_round = number
        self.n_asked += 1
        self.n_accepted += outcome == ACCEPTED
        self.n_silent += is_silent
        self.silent_in_a_row = self.silent_in_a_row + 1 if is_silent else 0
        self.outcomes.append(outcome)
        if outcome not in (ACCEPTED, UNJUDGED):
            count(self.reasons, outcome, 1)
        if not is_silent:
            self.scores = scores
            if outcome != UNJUDGED:
                self.replies.append(reply)


@dataclass
class RunHistory:
    """All that rules, pages and metrics need to know of a run. Rounds are added in their order."""

    n_rounds: int = 0
    last: RoundRecord | None = None
    n_accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by reason
    n_skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by phase
    n_bytes: dict[str, int] = field(default_factory=dict)
    accuracy: float | None = None  # of the last evaluation
    loss: float | None = None
    best_accuracy: float | None = None
    accuracies: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    nodes: OrderedDict[int, NodeHistory] = field(default_factory=OrderedDict)  # those seen last come last
    max_nodes: int = MAX_NODES

    def add(self, record: RoundRecord) -> None:
        self.n_rounds += 1
        self.last = record
        self.n_skipped += record.skipped is not None
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if record.skipped is not None else 0
        for phase, seconds in record.seconds.items():
            count(self.seconds, phase, seconds)
        for phase, n_bytes in record.n_bytes.items():
            count(self.n_bytes, phase, n_bytes)
        self._add_evaluation(record)
        self._add_nodes(record)

    def _add_evaluation(self, record: RoundRecord) -> None:
        if record.loss is not None:
            self.loss = record.loss
        if record.accuracy is not None and math.isfinite(record.accuracy):
            self.accuracy = record.accuracy
            self.accuracies.append(record.accuracy)
            best = self.best_accuracy
            self.best_accuracy = record.accuracy if best is None else max(best, record.accuracy)

    def _add_nodes(self, record: RoundRecord) -> None:
        outcomes = list(get_outcomes(record))
        n_rejected = sum(_is_rejected(outcome) for outcome in outcomes)
        n_judged = sum(outcome == ACCEPTED for outcome in outcomes) + n_rejected
        self.n_accepted += n_judged - n_rejected
        for row, (client, outcome) in enumerate(zip(record.clients, outcomes, strict=True)):
            if outcome not in (ACCEPTED, UNJUDGED):
                count(self.rejected, outcome, 1)
            node = self.nodes.setdefault(client, NodeHistory(record.round))
            self.nodes.move_to_end(client)
            if row < len(record.names):
                node.name = record.names[row] or node.name
            reply = Reply(outcome, n_judged - 1, n_rejected - _is_rejected(outcome))
            node.add(record.round, reply, get_scores(record, row))
        while len(self.nodes) > self.max_nodes:
            self.nodes.popitem(last=False)


def get_outcomes(record: RoundRecord) -> Iterator[str]:
    """For each client: that it was accepted, why it was rejected, or that nobody judged it."""
    for row, weight in enumerate(record.weights):
        reason = record.reasons[row] if row < len(record.reasons) else None
        if reason is not None:
            yield reason
        elif weight != 0:
            yield ACCEPTED
        else:  # a simulation writes no reasons: there the defense is the only one
            yield UNJUDGED if record.skipped is not None else "defense"


def get_scores(record: RoundRecord, row: int) -> dict[str, float]:
    """The scores of one client, by filter."""
    return {name: score for name, scores in record.scores.items() if (score := scores[row]) is not None}


def count(counts: MutableMapping[str, Number], name: str, number: Number) -> None:
    """Names beyond the limit are counted together: a file may hold any number of them."""
    key = name if name in counts or len(counts) < MAX_REASONS else OTHER
    counts[key] = counts[key] + number if key in counts else number


def _is_rejected(outcome: str) -> bool:
    """Whether a reply arrived and was refused."""
    return outcome not in (ACCEPTED, UNJUDGED) and outcome not in SILENT
