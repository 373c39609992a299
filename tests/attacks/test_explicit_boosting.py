"""Explicit boosting: gradient ascent or wrong labels, scaled by clients / malicious clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Attack, Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.attacks import ExplicitBoosting, TrainingPlan
from cosdefense.core import Aggregator, State, generator
from cosdefense.data import load
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from cosdefense.training.executor import train_clients
from cosdefense.training.local_sgd import LocalSGD
from worlds import digits_world


def cohort_of(rows: list[list[float]]) -> Cohort:
    return Cohort.of(torch.tensor(rows), torch.zeros(2), Layout((("w", (2,)),), "w", 2))


def test_pinned_factor() -> None:
    # One of four: times 4. Two of four: times 2. All: as it is.
    cohort = cohort_of([[1.0, 2.0], [10.0, -4.0], [3.0, 6.0], [0.0, 1.0]])
    malicious = torch.tensor([False, True, False, False])
    assert ExplicitBoosting().forge(cohort, malicious, None)[0][malicious].tolist() == [[40, -16]]
    malicious = torch.tensor([False, True, False, True])
    assert ExplicitBoosting().forge(cohort, malicious, None)[0][malicious].tolist() == [[20, -8], [0, 2]]
    everybody = torch.ones(4, dtype=torch.bool)
    assert torch.equal(ExplicitBoosting().forge(cohort, everybody, None)[0], cohort.updates)


def test_effort() -> None:
    effort = ExplicitBoosting(steps=7).plan_training(torch.zeros(2), Layout((("w", (2,)),), "w", 2), 3, None)
    assert effort.steps == 7
    assert effort.ascend
    assert ExplicitBoosting().steps == 5


@given(st.lists(st.tuples(st.booleans(), st.integers(-50, 50)), min_size=1, max_size=12))
def test_slow_twin(clients: list[tuple[bool, int]]) -> None:
    """The mean of the round then holds the attackers' mean at full length."""
    n, malicious = len(clients), [i for i, (bad, _) in enumerate(clients) if bad]
    cohort = cohort_of([[float(value), 1.0] for _, value in clients])
    forged, _ = ExplicitBoosting().forge(cohort, torch.tensor([bad for bad, _ in clients]), None)
    for i in malicious:
        assert forged[i].tolist() == pytest.approx([clients[i][1] * n / len(malicious), n / len(malicious)], rel=1e-6)
    if malicious:
        share = sum(float(forged[i, 0]) for i in malicious) / n
        assert share == pytest.approx(sum(clients[i][1] for i in malicious) / len(malicious), rel=1e-5, abs=1e-4)


@dataclass(frozen=True)
class Recording(Aggregator):
    """The mean, and everything that was sent as its memory."""

    def init(self) -> State:
        return None

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return Mean()(cohort, None)[0], cohort.updates


def test_what_is_sent_is_the_attackers_own_ascent() -> None:
    """Five steps of ascent on the attacker's own data, times n / m."""
    world = digits_world(n_clients=12, malicious=0.3)
    rounds = list(simulate(world, ExplicitBoosting(), Defense((), Recording()), rounds=2, sampled=8, batch=6, seed=5))
    start = world.task.initial()
    for number, done in enumerate(rounds):
        sent, malicious = done.after.defense_state[-1], done.malicious
        assert 0 < int(malicious.sum()) < 8
        images, labels = world.draw_batches(done.clients[malicious], 5, 6, generator(5, "effort", number))
        climbed = train_clients(world.task, LocalSGD(world.trainer.lr, ascend=True), start, images, labels)
        assert torch.allclose(sent[malicious], 8 / int(malicious.sum()) * climbed, atol=1e-5)
        before, after = (
            sum(float(world.task.loss(start + u, x[0], y[0])) for u, x, y in zip(moved, images, labels, strict=True))
            for moved in (torch.zeros_like(climbed), climbed)
        )
        assert after > before
        honest_images, honest_labels = world.draw_batches(done.clients, 1, 6, generator(5, "batches", number))
        honest = train_clients(world.task, world.trainer, start, honest_images, honest_labels)
        assert torch.allclose(sent[~malicious], honest[~malicious], atol=1e-6)
        start = done.after.params


def test_ascending_is_descending_the_negative_loss() -> None:
    world = digits_world(n_clients=10)
    images, labels = world.draw_batches(torch.tensor([1]), 1, 6, generator(0, "x"))
    start = world.task.initial()
    down = train_clients(world.task, world.trainer, start, images, labels)
    up = train_clients(world.task, replace(world.trainer, ascend=True), start, images, labels)
    assert torch.allclose(up, -down, atol=1e-7)


def test_the_targeted_form_trains_on_wrong_labels() -> None:
    """Descent instead of ascent, source images labeled as the target, and the same boost."""
    attack = ExplicitBoosting(3, source=1, target=7)
    labels, images = torch.tensor([[0, 1, 7, 1]]), torch.zeros(1, 4, 1, 2, 2)
    assert attack.poison(images, labels, 10, torch.Generator())[1].tolist() == [[0, 7, 7, 7]]
    aim = attack.prepare_evaluation(images[0], labels[0], 10)
    assert aim is not None
    assert aim[1].tolist() == [-1, 7, -1, 7]
    world = digits_world(n_clients=10)
    assert attack.plan_training(world.task.initial(), world.task.layout, 2, None) == TrainingPlan(3)
    assert ExplicitBoosting().poison(images, labels, 10, torch.Generator())[1] is labels
    assert ExplicitBoosting().prepare_evaluation(images[0], labels[0], 10) is None


@pytest.mark.slow
def test_the_targeted_form_turns_one_class_into_another() -> None:
    world = digits_world(malicious=0.2)
    honest = list(simulate(world, Attack(), get("fedavg"), rounds=40, sampled=10, batch=8, seed=0))[-1].after
    attack, digits = ExplicitBoosting(5, source=1, target=7), load("digits")
    before, after = (
        evaluate(world.task, params, digits.test_inputs, digits.test_targets, attack, 10)
        for params in (
            honest.params,
            list(simulate(world, attack, get("fedavg"), rounds=44, sampled=10, batch=8, seed=0, resume=honest))[
                -1
            ].after.params,
        )
    )
    assert before.attack_success is not None
    assert after.attack_success is not None
    assert before.attack_success < 0.1
    assert after.attack_success > 0.6


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="both source and target, or neither, got 1 and None"):
        ExplicitBoosting(source=1)
    with pytest.raises(ValueError, match=r"ExplicitBoosting.steps must be at least 1, got 0"):
        ExplicitBoosting(steps=0)
