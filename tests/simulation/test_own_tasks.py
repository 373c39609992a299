"""Tasks beyond images: local epochs, weighting by samples, each client's metrics, and attacks made for other data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cosdefense import Attack, Defense, World, get, simulate
from cosdefense.aggregators import Mean
from cosdefense.attacks import (
    DBA,
    Backdoor,
    EdgeCase,
    ExplicitBoosting,
    LabelFlip,
    Neurotoxin,
    OptimizedTrigger,
    SignFlip,
    ZeroSumMasks,
)
from cosdefense.core.sample_checks import UnsuitableData
from cosdefense.data.partition import ByClient
from cosdefense.hooks import AdversarialTraining
from cosdefense.simulation.client_training import LocalWork
from cosdefense.simulation.evaluation import evaluate
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.losses import LOSSES
from cosdefense.training.metrics import METRICS, make_metric
from cosdefense.training.task import Task
from shapes import unchecked

SIZES = [3, 10, 25]


def table_world(values: bool = False, **options: Any) -> World:
    """Three clients with tables of different lengths."""
    torch.manual_seed(0)
    inputs = torch.randn(sum(SIZES), 4)
    targets = inputs.sum(dim=1) if values else (inputs.sum(dim=1) > 0).long()
    task = Task.of(nn.Linear(4, 1 if values else 2), loss=LOSSES["mse" if values else "cross-entropy"])
    owners = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    return World.of(
        task, inputs, targets, n_clients=3, partition=ByClient(), trainer=LocalSGD(0.1), owners=owners, **options
    )


def test_clients_are_those_of_the_data() -> None:
    world = table_world()
    assert [len(own) for own in world.partition] == SIZES
    assert world.client_ids == (0, 1, 2)


def test_an_epoch_is_as_many_steps_as_the_samples_take() -> None:
    world = table_world()
    assert LocalWork(5, epochs=2).count_steps(world, torch.arange(3)) == [2, 4, 10]
    assert LocalWork(5, steps=3).count_steps(world, torch.arange(3)) == [3, 3, 3]


def test_epochs_train_each_client_as_long_as_its_data_are() -> None:
    """With batches of one and tiny steps, an epoch is the sum of the gradients of all samples."""
    world = replace(table_world(values=True), trainer=LocalSGD(1e-6))  # so small that the order does not matter
    start = world.task.initial()
    (round_,) = simulate(world, Attack(), get("fedavg"), rounds=1, sampled=3, batch=1, local_epochs=1, seed=0)
    gradients = [
        len(own) * world.task.gradient(start, world.inputs[own], world.targets[own])[0] for own in world.partition
    ]
    expected = -1e-6 * torch.stack(gradients).mean(dim=0)
    found = round_.verdict.update
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-7)


def test_clients_count_by_their_samples() -> None:
    world = table_world()
    defense = Defense((), Mean())
    (round_,) = simulate(world, Attack(), defense, rounds=1, sampled=3, batch=4, seed=0, weighting="samples")
    expected = {client: size / (sum(SIZES) / 3) for client, size in enumerate(SIZES)}
    found = dict(zip(round_.clients.tolist(), round_.verdict.weights.tolist(), strict=True))
    assert found == pytest.approx(expected)


def test_each_client_is_evaluated_on_its_own_samples() -> None:
    world = table_world()
    owners = torch.tensor([0] * 3 + [1] * 10 + [-1] * 25)
    f1 = make_metric("f1", METRICS["f1"])
    params = world.task.initial()
    found = evaluate(
        world.task, params, world.inputs, world.targets, Attack(), 2, metrics=[f1], owners=owners, n_clients=3
    )
    for client, rows in enumerate((slice(0, 3), slice(3, 13))):
        own = evaluate(world.task, params, world.inputs[rows], world.targets[rows], Attack(), 2, metrics=[f1])
        assert found.client_metrics["accuracy"][client] == pytest.approx(own.accuracy)
        assert found.client_metrics["loss"][client] == pytest.approx(own.loss)
        assert found.client_metrics["f1"][client] == pytest.approx(own.metrics["f1"], nan_ok=True)
    assert found.client_metrics["accuracy"][2] != found.client_metrics["accuracy"][2]  # not a number: nobody's samples


def test_values_have_no_accuracy() -> None:
    world = table_world(values=True)
    found = evaluate(world.task, world.task.initial(), world.inputs, world.targets, Attack(), 0)
    assert found.accuracy != found.accuracy
    assert found.class_recalls == ()
    assert found.loss == pytest.approx(float(world.task.loss(world.task.initial(), world.inputs, world.targets)))


FOR_IMAGES = [Backdoor(), DBA(), EdgeCase(0, 1), Neurotoxin(), OptimizedTrigger(), ZeroSumMasks(Backdoor())]


@pytest.mark.parametrize("attack", FOR_IMAGES, ids=lambda attack: type(attack).__name__)
def test_triggers_refuse_what_is_not_an_image(attack: Attack) -> None:
    rounds = simulate(table_world(malicious=0.4), attack, get("fedavg"), rounds=1, sampled=3, batch=2, seed=0)
    with pytest.raises(
        UnsuitableData, match=r"needs images .* in \[0, 1\], found samples of shape \(4,\) and type float32"
    ):
        next(rounds)


def test_pixels_must_be_in_their_range() -> None:
    world = table_world()
    images = replace(world, inputs=torch.linspace(-2, 2, 38 * 16).view(38, 1, 4, 4))
    with pytest.raises(UnsuitableData, match=r"shape \(1, 4, 4\) and type float32 from -2 to 2"):
        next(simulate(images, Backdoor(), get("fedavg"), rounds=1, sampled=3, batch=2, seed=0))
    hardened = Defense((), Mean(), (AdversarialTraining(),))
    for inputs in (images.inputs, torch.zeros(38, 5, dtype=torch.int64)):
        with pytest.raises(UnsuitableData, match=r"AdversarialTraining needs images"):
            next(simulate(replace(world, inputs=inputs), Attack(), hardened, rounds=1, sampled=3, batch=2, seed=0))


def test_a_trigger_refuses_batches_of_tables() -> None:
    with unchecked(), pytest.raises(UnsuitableData, match=r"found samples of shape \(30,\)"):
        Backdoor().poison(torch.rand(2, 1, 4, 30), torch.zeros(2, 1, 4, dtype=torch.int64), 2, torch.Generator())


@pytest.mark.parametrize("attack", [LabelFlip(), ExplicitBoosting(source=0, target=1)], ids=repr)
def test_wrong_labels_need_classes(attack: Attack) -> None:
    world = table_world(values=True, malicious=0.4)
    with pytest.raises(UnsuitableData, match="needs classes, found targets that are values of type float32"):
        next(simulate(world, attack, get("fedavg"), rounds=1, sampled=3, batch=2, seed=0))


def test_attacks_on_updates_take_any_data() -> None:
    (round_,) = simulate(
        table_world(values=True, malicious=0.4), SignFlip(), get("median"), rounds=1, sampled=3, batch=2, seed=0
    )
    assert bool(round_.verdict.update.isfinite().all())


class Pixelwise(nn.Module):
    """One output per class and pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.convolution(images)
        return outputs


def test_segmentation() -> None:
    torch.manual_seed(0)
    images = torch.rand(40, 1, 6, 6)
    masks = (images[:, 0] > 0.5).long()
    world = World.of(
        Task.of(Pixelwise()), images, masks, n_clients=4, malicious=0.25, trainer=LocalSGD(3.0), n_classes=2
    )
    *_, last = simulate(world, LabelFlip(), get("median"), rounds=12, sampled=4, batch=10, local_steps=4, seed=0)
    iou = make_metric("mean-iou", METRICS["mean-iou"])
    found = evaluate(world.task, last.after.params, images, masks, LabelFlip(), 2, metrics=[iou])
    answers = world.task.logits(last.after.params, images).argmax(dim=1)
    assert found.accuracy == pytest.approx(float((answers == masks).double().mean()))
    assert found.accuracy > 0.85
    assert found.metrics["mean-iou"] > 0.7
    with pytest.raises(UnsuitableData, match="needs one class per sample"):
        next(simulate(world, Backdoor(), get("median"), rounds=1, sampled=4, batch=2, seed=0))
