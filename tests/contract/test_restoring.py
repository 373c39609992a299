"""`check_restoring` finds what breaks a rule, by forged rows and by what it remembers, and passes rules that hold."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from cosdefense import Aggregator, Cohort, Defense, Filter, Judgment, get
from cosdefense.aggregators import Mean, Median, NormLimitedMean
from cosdefense.attacks._candidates import Candidate
from cosdefense.attacks._forgeries import HONEST_FORGERY, Forgery
from cosdefense.core import State
from cosdefense.filters import NearDuplicates, NormLimit, OpposedClusters
from cosdefense.testing import Agreement, WorstRound, check_restoring, find_worst_round
from cosdefense.testing.scenario_search import draw_scenario, mutate, openings
from cosdefense.testing.scenarios import HonestRows, Rounds, Scenario

THOROUGH = os.environ.get("COSDEFENSE_THOROUGH") == "1"
FIRST_ROUND = Agreement(max_history=0)


def honest_rows(scenario: Scenario) -> np.ndarray:
    return scenario.build_last().updates[: scenario.n_clients - scenario.last.n_malicious].numpy()


def scenarios(agreement: Agreement) -> list[Scenario]:
    rng = random.Random(5)
    drawn = [draw_scenario(agreement, rng) for _ in range(200 if THOROUGH else 15)]
    return [*islice(openings(agreement), 0, None, 11), *drawn, *(mutate(some, agreement, rng) for some in drawn)]


@pytest.mark.parametrize(
    "agreement", [Agreement(), Agreement(9, 2, 0.6, max_norm_ratio=3.0, max_history=5), FIRST_ROUND]
)
def test_every_scenario_meets_the_conditions(agreement: Agreement) -> None:
    for scenario in scenarios(agreement):
        rows = honest_rows(scenario)
        norms = np.linalg.norm(rows, axis=1)
        cosines = (rows / norms[:, None]) @ (rows / norms[:, None]).T
        assert len(scenario.build_last()) == agreement.n_clients
        assert agreement.n_clients / 2 < len(rows) < agreement.n_clients
        assert scenario.last.n_malicious <= agreement.largest_minority
        assert cosines.min() >= agreement.min_cosine - 1e-9
        assert norms.max() / norms.min() <= agreement.max_norm_ratio + 1e-9
        assert scenario.n_earlier_rounds <= agreement.max_history
        assert all(rounds.n_rounds >= 1 for rounds in scenario.history)


def test_the_conditions_are_reached() -> None:
    """Some honest rows have exactly the least cosine, and exactly the largest ratio of norms."""
    drawn = [honest_rows(scenario) for scenario in scenarios(Agreement())]
    norms = [np.linalg.norm(rows, axis=1) for rows in drawn]
    least = [(rows @ rows.T / np.outer(n, n)).min() for rows, n in zip(drawn, norms, strict=True)]
    assert min(least) == pytest.approx(0.8)
    assert max(n.max() / n.min() for n in norms) == pytest.approx(1.5)


def test_the_mean_is_not_restoring() -> None:
    """Two of ten that send five times the reversed mean: 0.8 − 2 · 5 / 10 = −0.2."""
    worst = find_worst_round(get("fedavg"))
    assert worst.scenario.history == ()
    assert worst.progress == pytest.approx(-0.2)
    assert worst.replay(get("fedavg")) == worst.progress
    with pytest.raises(AssertionError, match=r"not restoring.*\n.*2 malicious clients send 5 × reversed mean"):
        check_restoring(get("fedavg"))


def test_the_history_is_as_described() -> None:
    """As many rounds as it says, all different, with malicious clients that keep their numbers."""
    scenario = next(some for some in scenarios(Agreement()) if some.n_earlier_rounds >= 3)
    cohorts = list(scenario.build_history())
    assert len(cohorts) == scenario.n_earlier_rounds
    assert not torch.equal(cohorts[0].updates, cohorts[1].updates)
    for cohort, rounds in zip(cohorts, scenario.history[:1], strict=False):
        assert int((cohort.clients >= scenario.n_clients).sum()) == rounds.n_malicious


def test_a_counterexample_can_be_built_again() -> None:
    """The progress by its definition, in numpy, from the rows that the scenario builds."""
    worst = find_worst_round(get("fedavg"), Agreement(n_malicious=1))
    rows = worst.scenario.build_last().updates.numpy()
    mean = rows[:9].mean(axis=0)
    assert rows.mean(axis=0) @ mean / (mean @ mean) == pytest.approx(worst.progress)
    assert find_worst_round(get("fedavg"), Agreement(n_malicious=1)) == worst


@pytest.mark.slow
def test_the_median_is_restoring() -> None:
    """With honest rows at a cosine of 0.8 no coordinate can be turned by less than half of the clients."""
    worst = check_restoring(get("median"), n_rounds=20_000 if THOROUGH else 250)
    assert 0.05 < worst.progress < 0.7  # attackers do slow it down


def test_the_median_needs_agreement() -> None:
    """Where every honest client lacks the direction in its own coordinates, a minority decides the median there."""
    loose = Agreement(n_clients=9, min_cosine=0.05, max_history=0)
    worst = find_worst_round(get("median"), loose, n_rounds=2000)
    assert worst.progress < 0.01


@dataclass(frozen=True)
class FollowsFirstDirection(Filter):
    """Remembers the median of the first round and rejects what is opposed to it: the model can be locked in."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        rows = cohort.trainable()
        direction = rows.median(dim=0).values if state is None else state
        products = rows @ direction
        return Judgment(-products, products >= 0), direction


def test_a_rule_that_can_be_locked_in_is_caught_by_its_memory() -> None:
    defense = Defense((FollowsFirstDirection(),), Median())
    check_restoring(defense, FIRST_ROUND, n_rounds=200)
    worst = find_worst_round(defense, n_rounds=1000)
    assert worst.progress < 0.01
    assert worst.scenario.n_earlier_rounds == 1  # the simplest history
    assert worst.replay(Defense((), Median())) > 0.01


@dataclass(frozen=True)
class Shrinks(Aggregator):
    """A mean whose norm never grows: rounds of zeros stop the model for good."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        middle, _ = Median()(cohort, None)
        norm = float(middle.norm())
        allowed = norm if state is None else min(state, norm)
        return middle * (allowed / norm if norm > 0 else 1.0), allowed


def test_a_vanishing_update_is_not_restoring() -> None:
    worst = find_worst_round(Defense((), Shrinks()), n_rounds=1000)
    assert 0 <= worst.progress < 0.01
    assert worst.scenario.history


def test_a_skipped_round_is_not_restoring() -> None:
    @dataclass(frozen=True)
    class RejectsAll(Filter):
        def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
            return Judgment(cohort.weights, torch.zeros_like(cohort.weights)), state

    worst = find_worst_round(Defense((RejectsAll(),), Mean()))
    assert (worst.progress, worst.skipped) == (0.0, "every client was rejected")


@pytest.mark.slow
def test_near_duplicates_by_a_remembered_cosine_are_locked_in() -> None:
    """Honest clients that used to differ and now agree lose their votes to a few that hide under noise."""
    defense = Defense((NormLimit(), NearDuplicates(), OpposedClusters()), NormLimitedMean())
    check_restoring(defense, Agreement(n_malicious=3, max_history=0), n_rounds=100)
    worst = find_worst_round(defense, Agreement(n_malicious=3))
    assert worst.progress < 0
    assert [rounds.n_malicious for rounds in worst.scenario.history] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("n_malicious", [3, 4])
@pytest.mark.parametrize("name", ["factions", "two-references"])
def test_our_own_rules_follow_an_honest_majority(name: str, n_malicious: int) -> None:
    worst = check_restoring(get(name), Agreement(n_malicious=n_malicious), n_rounds=600)
    assert worst.n_rounds_tried >= 600


@pytest.mark.parametrize("n_malicious", [3, 4])
@pytest.mark.parametrize("n_rounds", [1, 16])
@pytest.mark.parametrize("name", ["factions", "two-references"])
def test_our_own_rules_withstand_the_lengths_of_earlier_rounds(name: str, n_rounds: int, n_malicious: int) -> None:
    """Malicious clients send updates as long as honest ones used to be, ten times as long as those are now."""
    agreed = HonestRows(0.8)
    before = Rounds(replace(agreed, scale=10.0), 0, HONEST_FORGERY, n_rounds)
    scenario = Scenario(Rounds(agreed, n_malicious, Forgery(Candidate("reversed", 5.0), noise=9.0)), (before,))
    assert measure_progress(get(name), scenario) > 0.5


@pytest.mark.parametrize("n_malicious", [3, 4])
def test_factions_follow_slowly_after_tiny_updates(n_malicious: int) -> None:
    """Where remembered updates are a hundred times as short, the way is right, and the step as short as those.

    In a first round with four such updates every length is cut at 0.01, the mean ratio of norms to their median is 0.6,
    and 0.6 of the updates are honest: 0.0036.
    """
    tiny, agreed = Forgery(Candidate("reversed", 0.0), noise=0.01), HonestRows(0.8)
    first = Scenario(Rounds(agreed, n_malicious, tiny))
    later = Scenario(Rounds(agreed, n_malicious, HONEST_FORGERY), (Rounds(agreed, 10, tiny, 16),))
    for scenario in (first, later):
        assert measure_progress(get("factions"), scenario) > 0.003


def measure_progress(defense: Defense, scenario: Scenario) -> float:
    return WorstRound(scenario, 0.0, None, 0).replay(defense)


def test_mistakes_are_named() -> None:
    for options, complaint in (
        ({"n_malicious": 5}, "n_malicious must be at least 1 and less than half of 10 clients, got 5"),
        ({"n_malicious": 0}, "n_malicious must be at least 1 and less than half of 10 clients, got 0"),
        ({"min_cosine": 0.0}, r"min_cosine must be in \(0, 1\], got 0.0"),
        ({"max_growth": 0.5}, "max_growth must be at least 1, got 0.5"),
        ({"max_history": -1}, "max_history must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"Agreement.{complaint}"):
            Agreement(**options)
