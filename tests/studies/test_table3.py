"""The paper's table 3, small: digits always, MNIST where it is present.

Bounds lie outside of what three seeds gave, written beside each. CosDefense was broken on purpose to see them fail:
accepting above the mean instead of below, or rejecting nobody, fails all of its tests. Comparing the first layer or the
whole vector fails none of them: under this attack, at this size, those detect malicious clients as well. The last test
covers that by recomputing verdicts from the last layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from cosdefense import Cohort, Defense, Judgment
from cosdefense.aggregators import Mean
from cosdefense.core import State
from cosdefense.data import Dataset
from cosdefense.data import load as load_data
from cosdefense.filters import CosDefense
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import load
from cosdefense.runs.metrics import summarize
from cosdefense.runs.prepare import build_model, build_world
from cosdefense.runs.records import RoundRecord
from cosdefense.runs.single_run import simulate_cell
from cosdefense.simulation.loop import Snapshot, simulate
from cosdefense.simulation.world import World
from cosdefense.studies.paper.plan import QUICK, files

pytestmark = pytest.mark.slow  # trains for many rounds

# The demo's federation with a faster network; and what `reproduce --quick` runs, cut to 300 rounds.
SETTINGS = {
    "digits": (
        "data.dataset=digits", "data.clients=30", "model={name='mlp', hidden=32}", "training.rounds=300",
        "training.batch=4", "training.lr=0.12", "training.evaluate_every=10", "schedule.attack_start=100",
        "schedule.defense_start=100",
    ),
    "mnist": (*QUICK["mnist"], "training.rounds=300", "training.evaluate_every=10"),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    before: float  # accuracy when the attack begins
    after: float  # the mean over the last tenth of the rounds: single ones swing
    malicious_rejected: float | None
    honest_rejected: float | None


@cache
def cells(dataset: str, seed: int) -> dict[tuple[str, str], Experiment]:
    experiment = load(files() / "mnist.toml", (*SETTINGS[dataset], f"seeds=[{seed}]"))
    return {(cell.attacks[0].label, cell.defenses[0].label): cell for cell in experiment.cells()}


@cache
def before_attack(dataset: str, seed: int) -> tuple[Dataset, World, RoundRecord, Snapshot]:
    """The rounds before attack and defense start: the same in every run, so they are simulated once."""
    cell, data = cells(dataset, seed)["none", "none"], load_data(dataset)
    short = replace(cell, training=replace(cell.training, rounds=cell.schedule.attack_start))
    world = build_world(cell, data, torch.device("cpu"))
    *_, (last, after) = simulate_cell(short, world, data, None)
    return data, world, last, after


@cache
def outcome(dataset: str, attack: str, defense: str, seed: int = 0) -> Outcome:
    cell = cells(dataset, seed)[attack, defense]
    data, world, before, start = before_attack(dataset, seed)
    attack_state, defense_state = cell.attacks[0].part.init(), cell.defenses[0].part.init()
    start = replace(start, attack_state=attack_state, defense_state=defense_state)
    summary = summarize([record for record, _ in simulate_cell(cell, world, data, start)])
    assert before.accuracy is not None
    return Outcome(before.accuracy, summary["tail_accuracy"], summary["malicious_rejected"], summary["honest_rejected"])


@pytest.fixture(params=SETTINGS)
def dataset(request: pytest.FixtureRequest) -> str:
    if request.param != "digits":
        request.getfixturevalue("real_data")
    return str(request.param)


# Beside each bound: what seeds 0, 1 and 2 gave, on digits and on MNIST.


@pytest.mark.parametrize("defense", ["none", "Krum"])
def test_others_end_at_chance(dataset: str, defense: str) -> None:
    result = outcome(dataset, "inner product", defense)
    assert result.before > 0.8  # 93, 92, 93 and 87, 88, 87 %: there was something to lose
    assert abs(result.after - 0.1) < 0.05  # none 10, 10, 10 and 10, 9, 10; Krum 10, 8, 10 and 10, 7, 9 %


def test_cosdefense_keeps_what_was_learned(dataset: str) -> None:
    result = outcome(dataset, "inner product", "CosDefense")
    assert result.after > result.before - 0.15  # 82, 86, 86 and 81, 89, 78 %: lost 11, 6, 7 and 6, −1, 8 points


def test_cosdefense_is_far_above_clipping_median(dataset: str) -> None:
    best, other = (outcome(dataset, "inner product", name).after for name in ("CosDefense", "Clipping-Median"))
    assert best > other + 0.25  # Clipping-Median 36, 47, 55 and 35, 44, 34 %: by 47, 40, 31 and 46, 45, 44 points


def test_cosdefense_rejects_the_malicious_and_not_many_others(dataset: str) -> None:
    result = outcome(dataset, "inner product", "CosDefense")
    assert result.malicious_rejected is not None
    assert result.honest_rejected is not None
    assert result.malicious_rejected > 0.65  # 83, 77, 86 and 91, 78, 90 %
    assert result.honest_rejected < 0.45  # 38, 41, 38 and 31, 36, 33 %


def test_cosdefense_costs_nothing_without_an_attack() -> None:
    plain, result = (outcome("digits", "none", name) for name in ("none", "CosDefense"))
    assert plain.after > 0.85  # 96, 97, 96 %
    assert abs(result.after - plain.after) < 0.03  # 0.2, 0.3, 0.2 points
    assert result.honest_rejected is not None
    assert 0.3 < result.honest_rejected < 0.55  # 46, 47, 46 %: some scores are always above the mean


def test_verdicts_follow_from_the_last_layer(dataset: str) -> None:
    seen: list[tuple[Cohort, Judgment]] = []

    class Watched(CosDefense):
        def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
            judgment, state = super().__call__(cohort, state)
            seen.append((cohort, judgment))
            return judgment, state

    cell = cells(dataset, 0)["inner product", "CosDefense"]
    data, world, _, start = before_attack(dataset, 0)
    watched = Defense((Watched(),), Mean())
    rounds = simulate(
        world, cell.attacks[0].part, watched, rounds=start.next_round + 10, sampled=10, batch=cell.training.batch,
        seed=0, resume=replace(start, defense_state=watched.init()),
    )  # fmt: skip
    assert sum(int(round_.malicious.sum()) for round_ in rounds) > 0
    *_, (last, _), _ = build_model(cell, data).named_parameters()  # before its bias
    where = world.task.layout.slices[last]
    for cohort, judgment in seen:
        updates, weights = cohort.updates[:, where].double(), cohort.params[where].double()
        cosines = (updates @ weights).abs() / (updates.norm(dim=1) * weights.norm())
        scores = (cosines - cosines.min()) / (cosines.max() - cosines.min())
        torch.testing.assert_close(judgment.scores.double(), scores, atol=1e-4, rtol=0)
        assert judgment.weights.bool().tolist() == (scores < scores.mean()).tolist()
    assert len(seen) == 10
