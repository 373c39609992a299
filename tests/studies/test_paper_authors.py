"""What the authors compared with: their formulas by hand, and what only the simulator may tell a defense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean, Median
from cosdefense.attacks import InnerProduct
from cosdefense.core.experiment_folder import import_module, reading_from
from cosdefense.filters import CosDefense
from cosdefense.runs.experiment_file import load
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.schedule import Schedule
from cosdefense.testing.contract import check_filter
from cosdefense.training.executor import train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import resnet18
from cosdefense.training.task import Task
from doubles import save_and_load
from worlds import digits_world

pytestmark = pytest.mark.slow  # trains for many rounds

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def authors() -> Iterator[ModuleType]:
    with reading_from(EXPERIMENTS / "paper"):
        yield import_module("authors")


@pytest.fixture
def oracle(authors: ModuleType) -> type:
    found: type = authors.OracleKrum
    return found


def judged(rule: object, column: list[float]) -> tuple[list[float], list[bool]]:
    cohort = Cohort.of(torch.tensor(column)[:, None], torch.zeros(1), Layout((("w", (1,)),), "w", 1))
    judgment, _ = rule(cohort, None)  # type: ignore[operator]
    return judgment.scores.tolist(), judgment.weights.tolist()


def test_plain_distances_to_the_n_minus_f_minus_3_nearest(oracle: type) -> None:
    # n = 6; client 5 lies, so f = 1: two neighbours. On a line at 0, 1, 3, 6, 10, 100.
    scores, accepted = judged(oracle((5,)), [0.0, 1.0, 3.0, 6.0, 10.0, 100.0])
    assert scores == [1 + 3, 1 + 2, 2 + 3, 3 + 4, 4 + 7, 90 + 94]
    assert accepted == [False, True, False, False, False, False]


def test_where_no_neighbour_is_left_nobody_is_preferred(oracle: type) -> None:
    """Their code then picks the first row, which is always an honest one."""
    assert judged(oracle((1, 2, 3)), [0.0, 1.0, 3.0, 6.0]) == ([0, 0, 0, 0], [True] * 4)


def test_the_contract(oracle: type) -> None:
    check_filter(oracle())


def test_the_simulator_gives_it_the_malicious_clients(oracle: type) -> None:
    malicious: list[tuple[int, ...]] = []

    class Recording(oracle):  # type: ignore[misc]
        def __call__(self, cohort: Cohort, state: None) -> object:
            malicious.append(self.malicious)
            return super().__call__(cohort, state)

    world = digits_world()
    list(simulate(world, InnerProduct(), Defense((Recording(),), Mean()), rounds=1, sampled=10, batch=4, seed=0))
    assert malicious == [tuple(world.malicious.nonzero().flatten().tolist())]


def test_a_file_reaches_it_by_name(oracle: type) -> None:
    experiment = load(EXPERIMENTS / "paper" / "krum-variants.toml")
    assert experiment.defenses[1].part == Defense((oracle(),), Mean(), buffers="aggregator")


HEAD = Layout((("head", (1, 2)),), "head", 2)


def test_watching_it_accepts_everybody_and_then_judges_as_cosdefense(authors: ModuleType) -> None:
    # The head points along (1, 0). Cosines with it: 1, −0.8, 0, 0.6; mapped onto [0, 1] their mean is 0.6.
    rows = torch.tensor([[2.0, 0.0], [-4.0, 3.0], [0.0, 1.0], [3.0, 4.0]])
    cohort = Cohort.of(rows, torch.tensor([1.0, 0.0]), HEAD)
    traced = authors.TracedCosDefense(patience=2)
    state = traced.init()
    accepted = []
    for _ in range(4):
        judgment, state = traced(cohort, save_and_load(state, traced))
        assert judgment.scores.tolist() == pytest.approx([1.0, 0.8, 0.0, 0.6])
        accepted.append(judgment.weights.tolist())
    assert accepted == [[1, 1, 1, 1]] * 2 + [[False, False, True, False]] * 2


def test_its_scores_are_not_mapped_onto_anything(authors: ModuleType) -> None:
    rows = torch.tensor([[3.0, 4.0], [-4.0, 3.0]])
    judgment, _ = authors.TracedCosDefense()(Cohort.of(rows, torch.tensor([5.0, 0.0]), HEAD), 0)
    assert judgment.scores.tolist() == pytest.approx([0.6, 0.8])


def test_watching_first_is_starting_later(authors: ModuleType) -> None:
    """The model goes the same way, to the bit, as with CosDefense that is switched on when the patience ends."""
    world = digits_world(n_clients=20)
    defenses = authors.traced_cosdefense(patience=4), Defense((CosDefense(),), Mean())
    traced, plain = (
        list(
            simulate(
                world, InnerProduct(), defense, rounds=9, sampled=10, batch=4, seed=0,
                schedule=Schedule(attack_start=3, defense_start=start),
            )
        )
        for defense, start in zip(defenses, (0, 4), strict=True)
    )  # fmt: skip
    for one, other in zip(traced, plain, strict=True):
        assert torch.equal(one.after.params, other.after.params)
        assert torch.equal(one.verdict.weights, other.verdict.weights)
        assert list(one.verdict.evidence) == ["TracedCosDefense"]
    assert any(bool((round_.verdict.weights == 0).any()) for round_ in traced)


@pytest.mark.parametrize("patience", [0, 200])
def test_the_contract_of_watching(authors: ModuleType, patience: int) -> None:
    check_filter(authors.TracedCosDefense(patience=patience))


def test_everything_that_was_sent_is_clipped_by_its_whole_length(authors: ModuleType) -> None:
    layout = Layout((("w", (1,)), ("norm.running_mean", (1,))), "w", 1)
    cohort = Cohort.of(torch.tensor([[3.0, 4.0], [0.3, -0.4], [0.0, 8.0], [0.0, 0.0]]), torch.zeros(2), layout)
    judgment, _ = authors.WholeClip(2.0)(cohort, None)
    assert judgment.scores.tolist() == pytest.approx([5, 0.5, 8, 0])
    assert torch.allclose(judgment.updates, torch.tensor([[1.2, 1.6], [0.3, -0.4], [0.0, 2.0], [0.0, 0.0]]))
    assert judgment.weights.tolist() == [1, 1, 1, 1]
    check_filter(authors.WholeClip(2.0))


def test_counters_travel_with_the_weights_and_change_nothing_else(authors: ModuleType) -> None:
    """Each moves by 1 per step: no update is shorter than √20, however little was learned."""
    tasks = []
    for build in (resnet18, authors.resnet18_with_counters):
        torch.manual_seed(0)
        tasks.append(Task.of(build((3, 32, 32), 10)))
    plain, counting = tasks
    counters = [name for name, _ in counting.layout.shapes if name.endswith("num_batches_tracked")]
    assert len(counters) == 20
    assert not set(counters) & set(counting.layout.trainable)
    assert counting.layout.n_trainable == plain.layout.n_trainable
    assert counting.layout.size == plain.layout.size + 20
    rng = torch.Generator().manual_seed(1)
    images, labels = torch.rand(1, 2, 2, 3, 32, 32, generator=rng), torch.randint(0, 10, (1, 2, 2), generator=rng)
    for steps in (1, 2):
        without, with_them = (
            train_clients(task, LocalSGD(1e-3), task.initial(), images[:, :steps], labels[:, :steps])[0]
            for task in tasks
        )
        named = counting.layout.unflatten(with_them)
        assert [float(named[name]) for name in counters] == [float(steps)] * 20
        for name, tensor in plain.layout.unflatten(without).items():
            assert torch.equal(named[name], tensor)
        assert float(with_them.norm()) >= steps * math.sqrt(20)


def test_the_file_with_counters_uses_both(authors: ModuleType) -> None:
    experiment = load(EXPERIMENTS / "paper" / "cifar-10-counters.toml")
    assert dict(experiment.model) == {"name": "authors:resnet18_with_counters"}
    assert experiment.defenses[0].part == Defense((authors.WholeClip(2.0),), Median(), buffers="aggregator")
