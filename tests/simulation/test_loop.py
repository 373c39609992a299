"""The loop: who takes part, what attacks and defenses do to a round, and that the seed decides every bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from cosdefense import Attack, ClientHook, Cohort, Defense, Filter, Judgment, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.attacks import ExplicitBoosting, InnerProduct, LabelFlip, Noise, SignFlip, TrainingPlan
from cosdefense.core import Loss, State, generator
from cosdefense.data import load
from cosdefense.simulation import client_training
from cosdefense.simulation.evaluation import Evaluation, evaluate
from cosdefense.simulation.loop import Round, SkippedRound, simulate
from cosdefense.simulation.schedule import Schedule
from cosdefense.simulation.world import World
from cosdefense.training.executor import train_clients
from cosdefense.training.task import Task
from shapes import THOROUGH
from worlds import digits_world, mlp_world


def run(world: World, attack: Attack, defense: Defense, rounds: int = 40, **options: object) -> list[Round]:
    settings = {"sampled": 10, "batch": 8, "seed": 0, **options}
    return list(simulate(world, attack, defense, rounds=rounds, **settings))  # type: ignore[arg-type]


def evaluate_round(world: World, last: Round, attack: Attack = Attack()) -> Evaluation:
    digits = load("digits")
    return evaluate(world.task, last.after.params, digits.test_inputs, digits.test_targets, attack, 10)


@pytest.fixture(scope="module")
def clean_accuracy() -> float:
    world = mlp_world()
    return evaluate_round(world, run(world, Attack(), get("fedavg"))[-1]).accuracy


@pytest.mark.slow
def test_honest_clients_learn(clean_accuracy: float) -> None:
    assert clean_accuracy > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2] if THOROUGH else [0])
def test_inner_product_breaks_the_mean_and_not_cosdefense(seed: int) -> None:
    """From round 30 on; all clients are honest before."""
    world = mlp_world(seed=seed, n_clients=20)
    before = run(world, Attack(), get("fedavg"), rounds=30, seed=seed)[-1].after
    accuracy = {}
    for name in ("fedavg", "cosdefense"):
        start = replace(before, defense_state=get(name).init())
        last = run(world, InnerProduct(), get(name), rounds=60, seed=seed, resume=start)[-1]
        accuracy[name] = evaluate_round(world, last).accuracy
    assert accuracy["fedavg"] < 0.15
    assert accuracy["cosdefense"] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "loss_of_accuracy"),
    [(InnerProduct(), 0.5), (SignFlip(5.0), 0.5), (Noise(1.0), 0.3), (LabelFlip(), 0.02)],
)
def test_every_attack_reaches_the_server(attack: Attack, loss_of_accuracy: float, clean_accuracy: float) -> None:
    """It lowers the accuracy of the plain mean. (Label flips by 30 % of clients hurt the mean only a little.)"""
    world = mlp_world()
    attacked = evaluate_round(world, run(world, attack, get("fedavg"))[-1]).accuracy
    assert attacked < clean_accuracy - loss_of_accuracy


@pytest.mark.slow
def test_a_targeted_flip_gets_what_it_wants() -> None:
    world, attack = mlp_world(malicious=0.6), LabelFlip(source=1, target=7)
    honest = evaluate_round(world, run(world, Attack(), get("fedavg"))[-1], attack).attack_success
    flipped = evaluate_round(world, run(world, attack, get("fedavg"))[-1], attack).attack_success
    assert honest is not None
    assert flipped is not None
    assert flipped > honest + 0.3
    assert evaluate_round(world, run(world, Attack(), get("fedavg"), rounds=1)[-1]).attack_success is None


@dataclass(frozen=True)
class Marker(Attack):
    """Makes its batches black and its rows all sevens, and counts the rounds."""

    def poison(
        self, images: Tensor, labels: Tensor, n_classes: int, rng: torch.Generator, clients: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(images), labels

    def forge(self, cohort: Cohort, malicious: Tensor, state: State) -> tuple[Tensor, State]:
        return torch.full_like(cohort.updates, 7.0), (state or 0) + 1


@dataclass(frozen=True)
class Watcher(Filter):
    """Accepts every client and keeps the cohorts."""

    cohorts: list[Cohort] = field(default_factory=list, compare=False)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        self.cohorts.append(cohort)
        return Judgment(torch.zeros(len(cohort)), torch.ones(len(cohort))), state


def test_only_malicious_rows_are_replaced() -> None:
    world, watcher = digits_world(), Watcher()
    rounds = run(world, Marker(), Defense((watcher,), Mean()), rounds=5)
    for round_, cohort in zip(rounds, watcher.cohorts, strict=True):
        forged = (cohort.updates == 7.0).all(dim=1)
        assert torch.equal(forged, round_.malicious)
        assert torch.equal(round_.malicious, world.malicious[round_.clients])
    assert any(bool(round_.malicious.any()) for round_ in rounds)
    assert rounds[-1].after.attack_state == 5  # the attack's own state


@dataclass(frozen=True)
class Marks(ClientHook):
    """Sets the first parameter of every client that runs it."""

    def step(self, params: Tensor, gradient: Tensor, previous: Tensor | None, layout: Layout, lr: float) -> Tensor:
        return torch.cat([params.new_tensor([0.125]), params[1:]])


@dataclass(frozen=True)
class Ascent(Attack):
    """Trains for three steps that increase the loss."""

    def plan_training(self, params: Tensor, layout: Layout, n_malicious: int, state: State) -> TrainingPlan:
        return TrainingPlan(steps=3, ascend=True)


def test_honest_clients_run_the_hooks_and_malicious_ones_do_not() -> None:
    """And only once the defense is active."""
    world, watcher = digits_world(), Watcher()
    defense = Defense((watcher,), Mean(), (Marks(),))
    rounds = run(world, LabelFlip(), defense, rounds=6, schedule=Schedule(defense_start=2), local_steps=2)
    for round_, cohort in zip(rounds[2:], watcher.cohorts, strict=True):  # the plain mean is used before
        marked = (cohort.params[0] + cohort.updates[:, 0] - 0.125).abs() < 1e-7
        assert torch.equal(marked, ~round_.malicious)
    assert any(bool(round_.malicious.any()) for round_ in rounds)


def test_malicious_clients_train_as_the_attack_plans() -> None:
    world, watcher = digits_world(), Watcher()
    (round_,) = run(world, Ascent(), Defense((watcher,), Mean()), rounds=1)
    (cohort,) = watcher.cohorts
    images, labels = world.draw_batches(round_.clients[round_.malicious], 3, 8, generator(0, "effort", 0))
    start = world.task.initial()
    expected = train_clients(world.task, replace(world.trainer, ascend=True), start, images, labels)
    assert torch.allclose(cohort.updates[round_.malicious], expected, atol=1e-6)
    before, after = (
        float(world.task.loss(params, images[0].flatten(0, 1), labels[0].flatten()))
        for params in (start, start + expected[0])
    )
    assert after > before


@dataclass(frozen=True)
class TrainedInnerProduct(InnerProduct):
    """The same attack by clients that train before they forge."""

    needs_local_training: ClassVar[bool] = True


@dataclass(frozen=True)
class Counter(ClientHook):
    """Counts the batches that clients train on."""

    batches: list[int] = field(default_factory=list, compare=False)

    def batch(self, loss: Loss, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.batches.append(len(images))
        return images, labels


def with_counter(world: World) -> tuple[World, Counter]:
    counter = Counter()
    return replace(world, trainer=replace(world.trainer, hooks=(counter,))), counter


def count_trained(rounds: Iterator[Round], counter: Counter, local_steps: int) -> Iterator[tuple[Round, int]]:
    """Each round, and how many clients trained in it."""
    for round_ in rounds:
        yield round_, len(counter.batches) // local_steps
        counter.batches.clear()


def test_malicious_clients_train_only_where_the_attack_needs_it() -> None:
    """Where it does not, leaving the training out changes no bit."""
    world, counter = with_counter(digits_world())
    schedule = Schedule(attack_start=1, attack_stop=5)

    def play(attack: Attack) -> list[tuple[Round, int]]:
        rounds = simulate(
            world, attack, get("cosdefense"), rounds=6, sampled=10, batch=8, seed=0, local_steps=2, schedule=schedule
        )
        return list(count_trained(rounds, counter, 2))

    without, with_training = play(InnerProduct()), play(TrainedInnerProduct())
    assert [n for _, n in without] == [int((~round_.malicious).sum()) for round_, _ in without]
    assert without[0][1] == without[5][1] == 10
    assert min(n for _, n in without) < 10
    assert [n for _, n in with_training] == [10] * 6
    for (one, _), (other, _) in zip(without, with_training, strict=True):
        assert torch.equal(one.after.params, other.after.params)
        assert torch.equal(one.verdict.weights, other.verdict.weights)


def test_malicious_clients_train_where_no_client_is_honest() -> None:
    """The attack then reverses the updates that they would have sent."""
    world = replace(digits_world(), malicious=torch.ones(50, dtype=torch.bool))
    (round_,) = run(world, InnerProduct(2.0), get("fedavg"), rounds=1)
    images, labels = world.draw_batches(round_.clients, 1, 8, generator(0, "batches", 0))
    honest = train_clients(world.task, world.trainer, world.task.initial(), images, labels)
    expected = world.task.initial() - 2 * honest.mean(dim=0)
    assert torch.allclose(round_.after.params, expected, atol=1e-6)
    assert float(honest.norm()) > 0.01


def test_the_schedule_is_kept() -> None:
    world = digits_world()
    schedule = Schedule(attack_start=3, attack_stop=5, defense_start=2)
    rounds = run(world, InnerProduct(), get("cosdefense"), rounds=8, schedule=schedule)
    any_malicious = [bool(world.malicious[round_.clients].any()) for round_ in rounds]
    assert [bool(round_.malicious.any()) for round_ in rounds] == [
        sampled and number in (3, 4) for number, sampled in enumerate(any_malicious)
    ]
    assert [round_.defended for round_ in rounds] == [False, False] + [True] * 6
    assert [bool(round_.verdict.evidence) for round_ in rounds] == [False, False] + [True] * 6


def test_without_an_attack_no_client_counts_as_malicious() -> None:
    assert not any(bool(r.malicious.any()) for r in run(digits_world(), Attack(), get("krum"), rounds=4))


def test_the_defense_does_not_change_who_is_sampled() -> None:
    world = digits_world()
    one = run(world, InnerProduct(), get("fedavg"), rounds=6)
    other = run(world, InnerProduct(), get("krum"), rounds=6)
    assert [r.clients.tolist() for r in one] == [r.clients.tolist() for r in other]
    assert not torch.equal(one[-1].after.params, other[-1].after.params)


def test_the_same_seed_gives_the_same_bits() -> None:
    one, again = (run(digits_world(), Noise(0.1), get("cosdefense"), rounds=10)[-1] for _ in range(2))
    assert torch.equal(one.after.params, again.after.params)
    other = run(digits_world(), Noise(0.1), get("cosdefense"), rounds=10, seed=1)[-1]
    assert not torch.equal(one.after.params, other.after.params)


def test_resuming_from_any_round_gives_the_same_bits() -> None:
    world = digits_world()
    whole = run(world, Marker(), get("cosdefense"), rounds=9)
    rest = run(world, Marker(), get("cosdefense"), rounds=9, resume=whole[3].after)
    assert [r.number for r in rest] == [4, 5, 6, 7, 8]
    assert torch.equal(whole[-1].after.params, rest[-1].after.params)
    assert whole[-1].after.attack_state == rest[-1].after.attack_state


def test_dropout_is_seeded_and_leaves_the_global_stream_alone() -> None:
    world = digits_world()
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    world = replace(world, task=Task.of(model))
    torch.manual_seed(5)
    one = run(world, Attack(), get("fedavg"), rounds=3)[-1].after.params
    draw = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(draw, torch.rand(1))
    torch.manual_seed(99)
    assert torch.equal(one, run(world, Attack(), get("fedavg"), rounds=3)[-1].after.params)


def test_too_few_clients_skip_the_round_with_a_warning() -> None:
    world = digits_world()
    with pytest.warns(SkippedRound, match="Krum needs more than 2 clients"):
        (round_,) = run(world, Attack(), get("krum"), rounds=1, sampled=2)
    assert round_.verdict.skipped is not None
    assert torch.equal(round_.after.params, world.task.initial())


def test_sampling_is_never_all_malicious_when_avoidable() -> None:
    world = digits_world(malicious=0.8)
    for number in range(50):
        clients = world.sample_clients(3, generator(number))
        assert len(set(clients.tolist())) == 3
        assert not bool(world.malicious[clients].all())
    everybody = replace(world, malicious=torch.ones(50, dtype=torch.bool))
    assert len(everybody.sample_clients(3, generator(0))) == 3
    with pytest.raises(ValueError, match="1 to 50 clients can be sampled, not 51"):
        world.sample_clients(51, generator(0))


def test_batches_hold_the_clients_own_samples_without_repetition() -> None:
    world = digits_world()
    world = replace(world, inputs=torch.arange(len(world.targets)).float().view(-1, 1, 1, 1))
    clients = torch.tensor([3, 8])
    images, labels = world.draw_batches(clients, 2, 10, generator(0))
    assert images.shape == (2, 2, 10, 1, 1, 1)
    for client, rows, own_labels in zip(clients.tolist(), images.flatten(1).long(), labels.flatten(1), strict=True):
        assert set(rows.tolist()) <= set(world.partition[client].tolist())
        assert len(set(rows.tolist())) == 20  # about 29 each: one pass
        assert torch.equal(world.targets[rows], own_labels)
    rows = world.draw_batches(clients, 1, 100, generator(0))[0].flatten(1).long()
    assert set(rows[0].tolist()) == set(world.partition[3].tolist())  # several passes


def test_time_and_memory_of_each_phase() -> None:
    round_ = run(digits_world(), InnerProduct(), get("krum"), rounds=1)[0]
    assert set(round_.seconds) == set(round_.peak_memory) == {"train", "attack", "defend"}
    assert all(seconds > 0 for seconds in round_.seconds.values())
    assert all(100e6 < peak < 24e9 for peak in round_.peak_memory.values())  # a process with torch in it


def test_schedule_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="rounds count from 0, got -1"):
        Schedule(attack_start=-1)
    with pytest.raises(ValueError, match="attack_stop must not come before attack_start, got 2"):
        Schedule(attack_start=3, attack_stop=2)


@dataclass(frozen=True)
class CountingFlip(LabelFlip):
    """Keeps how many clients were poisoned at a time."""

    poisoned: list[int] = field(default_factory=list, compare=False)

    def poison(
        self, images: Tensor, labels: Tensor, n_classes: int, rng: torch.Generator, clients: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self.poisoned.append(len(images))
        return super().poison(images, labels, n_classes, rng, clients)


@pytest.mark.parametrize("attack", [Attack(), CountingFlip(), InnerProduct(), ExplicitBoosting(), Noise()], ids=repr)
def test_large_rounds_in_small_chunks_change_no_bit(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client at a time, and their updates in a file."""
    world, defense = digits_world(), get("cosdefense")
    whole = run(world, attack, defense, rounds=3, local_steps=2)[-1].after.params
    if isinstance(attack, CountingFlip):
        assert max(attack.poisoned) > 1
        attack.poisoned.clear()
    monkeypatch.setattr(client_training, "CHUNK", 4 * max(2 * 8 * 64, len(whole)))
    chunks = run(world, attack, defense, rounds=3, local_steps=2, max_update_memory=0)[-1].after.params
    assert torch.equal(chunks, whole)
    if isinstance(attack, CountingFlip):
        assert set(attack.poisoned) == {1}
