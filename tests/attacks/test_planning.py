"""Planning: it prepares a defense that remembers, and is as good as the adaptive attack where nothing is remembered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from cosdefense import Aggregator, Attack, Cohort, Defense, Filter, Judgment, get
from cosdefense.aggregators import Mean
from cosdefense.attacks import Adaptive, Planning
from cosdefense.attacks._forgeries import HONEST_FORGERY, STANDARD_FORGERIES, ZERO_CANDIDATE, Forgery, ForgeryBuilder
from cosdefense.catalog.registry import build_attack, describe
from cosdefense.core import State
from cosdefense.ops import row_norms
from cosdefense.testing.examples import LAYOUT

T = LAYOUT.n_trainable
MALICIOUS = torch.arange(10) >= 7


def round_of(number: int) -> Cohort:
    """Clients that agree about the direction and differ around it."""
    rng = torch.Generator().manual_seed(number)
    common = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    updates = 0.1 * (common + 0.3 * torch.randn(10, LAYOUT.size, generator=rng, dtype=torch.float64))
    return Cohort.of(updates, common.abs(), LAYOUT, seed=number)


@dataclass(frozen=True)
class NormOfLastRound(Filter):
    """Rejects updates longer than the longest of the last round, or than 1 in the first.

    Malicious clients that send long updates are rejected and yet raise the limit of the next round.
    """

    def init(self) -> State:
        return 1.0

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.trainable())
        return Judgment(norms, norms <= state), float(norms.max())


@dataclass(frozen=True)
class Trust(Aggregator):
    """The median; after a round in which everybody sent about the same, the mean.

    What damages the median most is not about the same. So an attack that strikes in every round meets the median in
    every round. One harmless round buys one round with the mean.
    """

    def init(self) -> State:
        return False

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        rows = cohort.updates
        middle = rows.quantile(0.5, dim=0)
        harmless = bool((rows @ middle >= 0.5 * middle @ middle).all())
        return rows.mean(dim=0) if state else middle, harmless


def total_progress(attack: Attack, defense: Defense, rounds: int = 4) -> float:
    """How far the model gets in some rounds, in honest means. By the definition, without the attack's own code."""
    memory, state, total = defense.init(), attack.init(), 0.0
    for number in range(rounds):
        cohort = round_of(number)
        informed, state = attack.with_defense(defense, memory, state)
        rows, state = informed.forge(cohort, MALICIOUS, state)
        sent = replace(cohort, updates=torch.where(MALICIOUS[:, None], rows, cohort.updates))
        verdict, memory = defense(sent, memory)
        mean = cohort.updates[~MALICIOUS].mean(dim=0)[:T]
        total += float(verdict.update[:T] @ mean / (mean @ mean))
    return total


def test_investing_wins_where_greed_gains_nothing() -> None:
    """The adaptive attack never sends a harmless round. The planning attack does, and then reverses the model."""
    defense = Defense((), Trust())
    assert total_progress(Adaptive(trials=73), defense) > 2
    assert total_progress(Planning(trials=73), defense) < 0


def test_a_limit_that_follows_rejected_updates_is_raised_first() -> None:
    """Long updates are rejected in one round and accepted in the next."""
    defense = Defense((NormOfLastRound(),), Mean())
    planned = total_progress(Planning(trials=73), defense)
    assert planned < total_progress(Adaptive(trials=73), defense) - 1


@pytest.mark.parametrize("name", ["median", "multi-krum", "cosdefense"])
def test_without_memory_it_is_as_good_as_the_adaptive_attack(name: str) -> None:
    """The same number of trials, in one round."""
    defense = get(name)
    planned, greedy = (total_progress(attack(trials=100), defense, rounds=1) for attack in (Planning, Adaptive))
    assert planned <= greedy + 0.02


@dataclass(frozen=True)
class Counting(Aggregator):
    """The mean, which remembers how often it was asked and tells a list."""

    remembers: bool
    asked: tuple[list[int], ...] = ([],)

    def __hash__(self) -> int:
        return 0

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        self.asked[0].append(len(cohort))
        return cohort.updates.mean(dim=0), (state or 0) + 1 if self.remembers else None


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("trials", [2, 20, 100])
def test_the_number_of_trials(remembers: bool, trials: int) -> None:
    rule = Counting(remembers, ([],))
    Planning(Defense((), rule), trials=trials).forge(round_of(0), MALICIOUS, None)
    longest = max(trials, trials // 2 + 4)  # one schedule is always tried
    assert trials // 2 <= len(rule.asked[0]) <= longest


def test_the_same_input_gives_the_same_rows_in_any_order() -> None:
    defense, cohort = Defense((NormOfLastRound(),), Mean()), round_of(0)
    attack = Planning(defense, trials=40)
    rows, _ = attack.forge(cohort, MALICIOUS, None)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    shuffled = replace(cohort, updates=cohort.updates[order], clients=cohort.clients[order])
    again, _ = attack.forge(shuffled, MALICIOUS[order], None)
    assert torch.equal(again, rows[order])
    assert torch.equal(rows[~MALICIOUS], cohort.updates[~MALICIOUS])


def test_what_is_sent() -> None:
    """The formula of a forgery: a candidate, plus noise of every client's own, and what the others send."""
    cohort = round_of(0)
    known = cohort.updates[~MALICIOUS]
    builder = ForgeryBuilder.from_cohort(cohort, known, MALICIOUS)
    mean, norm = known.mean(dim=0), known[:, :T].norm(dim=1).median()
    assert torch.equal(builder.build(HONEST_FORGERY), cohort.updates[MALICIOUS])
    assert torch.allclose(builder.build(STANDARD_FORGERIES["inner product × 5"]), -5 * mean.expand(3, -1))
    copied = builder.build(STANDARD_FORGERIES["mimic"])
    assert torch.equal(copied, known[(known[:, :T] @ mean[:T]).argmin()].expand(3, -1))
    noise = builder.build(Forgery(ZERO_CANDIDATE, noise=2.0))
    assert torch.allclose(noise[:, :T].norm(dim=1), 2 * norm.expand(3))
    assert float((noise[0] @ noise[1]).abs()) < 0.9 * float(noise[0] @ noise[0])
    some = builder.build(replace(STANDARD_FORGERIES["inner product"], share=0.5))
    assert torch.allclose(some[:2], -mean.expand(2, -1))
    assert torch.equal(some[2], cohort.updates[9])


def test_in_files_and_mistakes() -> None:
    attack = build_attack({"name": "planning", "defense": "krum", "trials": 30, "horizon": 3, "curvature": 0.1})
    assert attack == Planning(get("krum"), 30, 3, 0.1)
    assert build_attack(describe(attack)) == attack
    for options, complaint in (
        ({"trials": 1}, "trials must be at least 2 and finite, got 1"),
        ({"horizon": 0}, "horizon must be at least 1 and finite, got 0"),
        ({"curvature": -0.1}, "curvature must be at least 0 and finite, got -0.1"),
        ({"curvature": math.nan}, "curvature must be at least 0 and finite, got nan"),
    ):
        with pytest.raises(ValueError, match=f"Planning.{complaint}"):
            Planning(**options)
