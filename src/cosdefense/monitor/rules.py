"""Rules for alarms: each says what is wrong in the recent past of a run.

Defenses reject honest nodes by design: Multi-Krum a fixed share of every round, CosDefense about a half. Rules about
nodes therefore ask how likely it is by chance: given how often the other nodes were rejected in the same rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import comb
from typing import ClassVar

from .history import ACCEPTED, WINDOW, NodeHistory, Reply, RunHistory

LIKELY = 0.01  # above this, what happens to a node is nothing special any more
Subject = int | None  # a node; None: the run
Finding = tuple[Subject, str | None]  # what is wrong with it; None: nothing any more


class Rule(ABC):
    """Looks at a run after each round."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, history: RunHistory, active: Collection[Subject]) -> Iterator[Finding]:
        """What is wrong, and which of the active alarms are over. What is not mentioned stays as it is."""


@dataclass(frozen=True)
class NodeRejected(Rule):
    """The replies of a node are rejected far more often than those of the other nodes."""

    name: ClassVar[str] = "node-rejected"
    times: int = 5  # rejected in at least so many
    of: int = 20  # of its last replies
    share: float = 0.9  # and in at least this share of them
    chance: float = 1e-6  # and a node like the others would be rejected so often with at most this probability

    def __post_init__(self) -> None:
        _check_window("NodeRejected", self.of)
        if not 1 <= self.times <= self.of:
            raise ValueError(f"NodeRejected needs 1 ≤ times ≤ of, got times={self.times}, of={self.of}")

    def check(self, history: RunHistory, active: Collection[Subject]) -> Iterator[Finding]:
        for client in history.last.clients if history.last else ():
            if client in history.nodes:
                replies = list(history.nodes[client].replies)[-self.of :]
                n_rejected = sum(reply.outcome != ACCEPTED for reply in replies)
                is_often = n_rejected >= max(self.times, self.share * len(replies))
                if is_often or client in active:
                    yield from self._compare(client, replies, n_rejected, is_often)

    def _compare(self, client: int, replies: list[Reply], n_rejected: int, is_often: bool) -> Iterator[Finding]:
        usual = _estimate(sum(reply.n_others_rejected for reply in replies), sum(reply.n_others for reply in replies))
        probability = at_least(n_rejected, len(replies), usual)
        if is_often and probability <= self.chance:
            reasons = Counter(reply.outcome for reply in replies if reply.outcome != ACCEPTED)
            names = ", ".join(reason for reason, _ in reasons.most_common(3))
            yield (
                client,
                f"rejected in {n_rejected} of its last {len(replies)} replies ({names}), others in {usual:.0%}",
            )
        elif probability > LIKELY:
            yield client, None


@dataclass(frozen=True)
class NodeLost(Rule):
    """A node whose replies were mostly accepted does not reply any more, or is not connected any more."""

    name: ClassVar[str] = "node-lost"
    rounds: int = 3  # without a reply, at least
    accepted: int = 5  # of its replies before, at least, and half of the last `of`
    of: int = 20
    chance: float = 1e-6  # and so many rounds without a reply happen with at most this probability

    def __post_init__(self) -> None:
        _check_window("NodeLost", self.of)

    def check(self, history: RunHistory, active: Collection[Subject]) -> Iterator[Finding]:
        number = history.last.round if history.last else 0
        for client, node in history.nodes.items():
            n_absent = number - node.last_round
            n_silent = n_absent + node.silent_in_a_row
            if n_silent == 0:
                if client in active:
                    yield client, None
            elif n_silent >= self.rounds and self._is_unusual(node, n_absent) and self._looked_honest(node):
                yield client, _describe_silence(node, n_absent)

    def _is_unusual(self, node: NodeHistory, n_absent: int) -> bool:
        return _probability_of_silence(node, n_absent) <= self.chance

    def _looked_honest(self, node: NodeHistory) -> bool:
        replies = list(node.replies)[-self.of :]
        n_accepted = sum(reply.outcome == ACCEPTED for reply in replies)
        return n_accepted >= self.accepted and 2 * n_accepted >= len(replies)


@dataclass(frozen=True)
class RoundsSkipped(Rule):
    """Several rounds in a row left the model as it was."""

    name: ClassVar[str] = "rounds-skipped"
    in_a_row: int = 3

    def check(self, history: RunHistory, active: Collection[Subject]) -> Iterator[Finding]:
        if history.skipped_in_a_row >= self.in_a_row:
            reason = history.last.skipped if history.last else ""
            yield None, f"{history.skipped_in_a_row} rounds in a row were skipped, the last because: {reason}"
        elif not history.skipped_in_a_row:
            yield None, None


@dataclass(frozen=True)
class AccuracyFell(Rule):
    """The accuracy is far below the best of the last evaluations."""

    name: ClassVar[str] = "accuracy-fell"
    by: float = 0.15  # below the best, at least
    of: int = 20  # evaluations

    def __post_init__(self) -> None:
        _check_window("AccuracyFell", self.of)

    def check(self, history: RunHistory, active: Collection[Subject]) -> Iterator[Finding]:
        if not history.accuracies:
            return
        recent = list(history.accuracies)[-self.of :]
        best, last = max(recent), recent[-1]
        if best - last >= self.by:
            yield None, f"the accuracy is {last:.1%}; the best of the last {len(recent)} evaluations is {best:.1%}"
        elif best - last < self.by / 2:
            yield None, None


def at_least(n: int, of: int, probability: float) -> float:
    """The probability of at least n successes in so many independent trials."""
    return sum(comb(of, k) * probability**k * (1 - probability) ** (of - k) for k in range(n, of + 1))


def _estimate(n: int, of: int) -> float:
    """A share, estimated from few observations: never 0 and never 1 (Laplace's rule of succession)."""
    return (n + 1) / (of + 2)


def _probability_of_silence(node: NodeHistory, n_absent: int) -> float:
    """That a node is not sampled for so many rounds, and was late so often in a row, as often as it was so before."""
    asked = _estimate(node.n_asked, node.last_round - node.first_round + 1)
    n_before = node.n_asked - node.silent_in_a_row
    silent = _estimate(node.n_silent - node.silent_in_a_row, n_before)
    return float((1 - asked) ** n_absent * silent**node.silent_in_a_row)


def _describe_silence(node: NodeHistory, n_absent: int) -> str:
    texts = [f"no reply to its last {node.silent_in_a_row} messages"] if node.silent_in_a_row else []
    texts += [f"not in the last {n_absent} rounds"] if n_absent else []
    return f"{' and '.join(texts)}; {node.n_accepted} of its {node.n_asked - node.n_silent} replies were accepted"


def _check_window(rule: str, of: int) -> None:
    if not 1 <= of <= WINDOW:
        raise ValueError(f"{rule} needs 1 ≤ of ≤ {WINDOW}, got {of}")


DEFAULT_RULES: tuple[Rule, ...] = (NodeRejected(), NodeLost(), RoundsSkipped(), AccuracyFell())
