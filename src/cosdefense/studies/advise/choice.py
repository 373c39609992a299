"""The rule that chooses a defense. It is a function of numbers: the same numbers give the same answer.

1. A defense is affordable if, without an attack, it keeps at least 90 % of what training gains, rejects no honest
   client in more than half of that client's rounds, and serves no client 20 points of accuracy worse than plain
   averaging serves its worst-served client.
2. Of those, the best is the one that keeps most in its worst case. Whoever keeps at most 5 points less counts as equal:
   one run is not more exact than that. Among equals: who keeps most on average over the attacks, counted in steps of
   5 points; then who rejects fewest honest updates; then the more important one.
3. It is worth its cost if it keeps at least 10 points more in its worst case than plain averaging does in its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .measured import Outcome

MIN_CLEAN = 0.9  # of what training gains
MAX_REJECTED = 0.5  # of an honest client's rounds
MAX_CLIENT_LOSS = 0.2  # of the worst-served client's accuracy
EQUAL = 0.05
MIN_GAIN = 0.1
SURVIVED, BROKEN = 0.8, 0.5  # an attack that leaves at least, and less than this


@dataclass(frozen=True)
class Choice:
    """The answer: which defense, or None; how it compares; why others could not be chosen."""

    reference: Outcome  # plain averaging
    recommended: Outcome | None
    best: Outcome | None  # of those that are affordable, worth their cost or not
    refused: tuple[tuple[Outcome, str], ...]  # those that cost too much, and what

    @property
    def gain(self) -> float:
        """How much more the best one keeps in its worst case."""
        return 0.0 if self.best is None else self.best.worst[1] - self.reference.worst[1]


def choose(outcomes: Sequence[Outcome]) -> Choice:
    """Apply the rule. The first outcome is plain averaging; the others come in order of importance."""
    reference, *others = outcomes
    costs = [(outcome, find_cost(outcome, reference)) for outcome in others]
    affordable = [outcome for outcome, cost in costs if not cost]
    refused = tuple((outcome, cost) for outcome, cost in costs if cost)
    if not affordable:
        return Choice(reference, None, None, refused)
    most = max(outcome.worst[1] for outcome in affordable)
    equal = [outcome for outcome in affordable if outcome.worst[1] >= most - EQUAL]
    best = min(equal, key=_rank_equal)  # the first of those that are the same
    is_worth = best.worst[1] - reference.worst[1] >= MIN_GAIN
    return Choice(reference, best if is_worth else None, best, refused)


def _rank_equal(outcome: Outcome) -> tuple[float, float]:
    return -round(fmean(outcome.attacked.values()) / EQUAL), outcome.honest_rejected or 0.0


def find_cost(outcome: Outcome, reference: Outcome) -> str:
    """Why a defense costs too much without an attack; empty: it does not."""
    kept = outcome.kept[outcome.clean]
    if kept < MIN_CLEAN:
        return f"without an attack it keeps {kept:.0%} of what training gains"
    most, worst, usual = outcome.most_rejected, outcome.worst_served, reference.worst_served
    if most and most.value > MAX_REJECTED:
        return f"without an attack it rejects {most.name} in {most.value:.0%} of its rounds"
    if worst and usual and worst.measured == "accuracy" and usual.value - worst.value > MAX_CLIENT_LOSS:
        return (
            f"without an attack {worst.name} has an accuracy of {worst.value:.1%}, with plain averaging the worst "
            f"is {usual.value:.1%}"
        )
    return ""


def list_survived(outcome: Outcome) -> list[str]:
    return [attack for attack, kept in outcome.attacked.items() if kept >= SURVIVED]


def list_broken(outcome: Outcome) -> list[str]:
    return [attack for attack, kept in outcome.attacked.items() if kept < BROKEN]


def list_weakened(outcome: Outcome) -> list[str]:
    return [attack for attack, kept in outcome.attacked.items() if BROKEN <= kept < SURVIVED]
