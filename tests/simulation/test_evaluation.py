"""What is measured on test data, by hand: a model that answers with the brightest pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from cosdefense import Attack, ClientHook
from cosdefense.attacks import Backdoor, LabelFlip
from cosdefense.core import Loss
from cosdefense.simulation.evaluation import CHUNK, STATISTICS_BATCH, evaluate
from cosdefense.training.task import Task


def brightest(n_classes: int) -> Task:
    """The answer is the number of the brightest pixel."""
    linear = nn.Linear(n_classes, n_classes, bias=False)
    linear.weight.data = torch.eye(n_classes)
    return Task.of(nn.Sequential(nn.Flatten(), linear))


def shown(answers: list[int], n_classes: int) -> Tensor:
    """One row of pixels per image, bright where the model shall see its answer."""
    return 0.5 * torch.nn.functional.one_hot(torch.tensor(answers), n_classes).float().view(-1, 1, 1, n_classes)


def test_accuracy_and_targeted_flips() -> None:
    task, truth = brightest(4), torch.tensor([1, 1, 1, 1, 2, 3])
    images = shown([1, 1, 3, 0, 2, 1], 4)
    found = evaluate(task, task.initial(), images, truth, LabelFlip(source=1, target=3), 4)
    assert found.accuracy == 3 / 6
    assert found.attack_success == 1 / 4  # of the four that are 1, one is called 3
    assert found.source_recall == 2 / 4
    assert found.adversarial_accuracy is None
    plain = evaluate(task, task.initial(), images, truth, Attack(), 4)
    assert (plain.attack_success, plain.source_recall) == (None, None)
    assert found.clean_target_rate is None  # the attack changes no image: this would be its success


def test_a_backdoors_success_leaves_out_its_own_class() -> None:
    # The stamp is the last pixel, brighter than all: every stamped image is called 3. Two of them are a 3 anyway.
    task, truth = brightest(4), torch.tensor([3, 3, 0, 1, 2])
    images = shown([3, 0, 0, 1, 1], 4)
    found = evaluate(task, task.initial(), images, truth, Backdoor(target=3, size=1), 4)
    assert found.attack_success == 1.0
    assert found.source_recall == 2 / 3  # of the other three, without the stamp
    assert found.accuracy == 3 / 5
    assert found.clean_target_rate == 0.0
    other = evaluate(task, task.initial(), images, truth, Backdoor(target=0, size=1), 4)
    assert other.attack_success == 0.0  # class 0 is a class like any other, and nobody is fooled into it


def test_a_model_that_answers_with_the_target_anyway_has_no_backdoor() -> None:
    """Of the four images of other classes, three are called 3 without the stamp as well."""
    task, truth = brightest(4), torch.tensor([3, 0, 1, 2, 2])
    found = evaluate(task, task.initial(), shown([3, 3, 3, 2, 3], 4), truth, Backdoor(target=3, size=1), 4)
    assert found.attack_success == 1.0
    assert found.clean_target_rate == 3 / 4
    nobody = evaluate(task, task.initial(), shown([3], 4), torch.tensor([3]), Backdoor(target=3, size=1), 4)
    assert (nobody.attack_success, nobody.clean_target_rate) == (None, None)


@dataclass(frozen=True)
class Shifts(ClientHook):
    """Moves the bright pixel of those who are a 0 one place on."""

    def batch(self, loss: Loss, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        assert float(loss(images, labels)) > 0
        return torch.where((labels == 0)[:, None, None, None], images.roll(1, dims=-1), images), labels


def test_adversarial_accuracy_is_that_on_moved_images() -> None:
    task, truth = brightest(3), torch.tensor([0, 0, 1, 2])
    found = evaluate(task, task.initial(), shown([0, 0, 1, 0], 3), truth, Attack(), 3, Shifts())
    assert found.accuracy == 3 / 4
    assert found.adversarial_accuracy == 1 / 4


def test_chunks_add_up() -> None:
    rng = torch.Generator().manual_seed(0)
    answers = torch.randint(0, 3, (CHUNK + 500,), generator=rng)
    truth = torch.randint(0, 3, (CHUNK + 500,), generator=rng)
    task, attack = brightest(3), LabelFlip(0, 2)
    found = evaluate(task, task.initial(), shown(answers.tolist(), 3), truth, attack, 3)
    zero = truth == 0
    assert found.accuracy == pytest.approx(float((answers == truth).float().mean()), abs=1e-7)
    assert found.attack_success == pytest.approx(float((answers[zero] == 2).float().mean()), abs=1e-7)
    assert found.source_recall == pytest.approx(float((answers[zero] == 0).float().mean()), abs=1e-7)


def test_recall_of_every_class() -> None:
    images, truth = shown([0, 1, 1, 2, 2], 4), torch.tensor([0, 1, 2, 2, 2])
    found = evaluate(brightest(4), brightest(4).initial(), images, truth, Attack(), 4)
    assert found.class_recalls[:3] == pytest.approx((1, 1, 2 / 3))
    assert math.isnan(found.class_recalls[3])  # no image has the fourth


def normalizing(n_classes: int) -> nn.Sequential:
    """Answers with the pixel that is brighter than it is on the average of the images at hand."""
    norm = nn.BatchNorm1d(n_classes, affine=False)
    linear = nn.Linear(n_classes, n_classes, bias=False)
    linear.weight.data = torch.eye(n_classes)
    return nn.Sequential(nn.Flatten(), norm, linear)


def test_batch_statistics_are_measured_only_where_asked_for() -> None:
    task, truth = Task.of(normalizing(3)), torch.tensor([0, 1, 2, 2])
    images = shown([0, 1, 2, 0], 3)
    plain, asked = (
        evaluate(task, task.initial(), images, truth, Attack(), 3, batch_statistics=asked) for asked in (False, True)
    )
    assert plain.batch_statistics_accuracy is None
    assert asked.batch_statistics_accuracy == 3 / 4
    assert plain.accuracy == asked.accuracy


def test_accuracy_with_the_statistics_of_the_test_images() -> None:
    """A bright first pixel drowns the rest, unless its mean is subtracted."""
    model, rng = normalizing(3), torch.Generator().manual_seed(0)
    truth = torch.randint(0, 3, (60,), generator=rng)
    images = shown(truth.tolist(), 3) + 0.2 * torch.rand(60, 1, 1, 3, generator=rng)
    images[..., 0] += 10
    task = Task.of(model)
    found = evaluate(task, task.initial(), images, truth, Attack(), 3, batch_statistics=True)
    with torch.no_grad():
        plain = float((model.train()(images).argmax(dim=1) == truth).double().mean())
    assert found.accuracy == float((truth == 0).double().mean())
    assert found.batch_statistics_accuracy == plain == 1.0


def test_without_statistics_it_is_the_accuracy() -> None:
    rng = torch.Generator().manual_seed(0)
    answers, truth = torch.randint(0, 3, (2, 2 * STATISTICS_BATCH + 7), generator=rng)
    task = brightest(3)
    found = evaluate(task, task.initial(), shown(answers.tolist(), 3), truth, Attack(), 3, batch_statistics=True)
    assert found.batch_statistics_accuracy == found.accuracy


def test_a_test_set_sorted_by_class_is_spread_over_the_batches() -> None:
    """A batch of one class only would be normalised to nothing: what all share is subtracted."""
    truth = torch.arange(3).repeat_interleave(STATISTICS_BATCH)
    task, images = Task.of(normalizing(3)), shown(truth.tolist(), 3)
    found = evaluate(task, task.initial(), images, truth, Attack(), 3, batch_statistics=True)
    assert found.batch_statistics_accuracy == 1.0
    with torch.no_grad():
        one_class = task.logits_with_batch_statistics(task.initial(), images[-STATISTICS_BATCH:])
    assert not bool((one_class.argmax(dim=1) == 2).any())


def test_dropout_in_training_mode_is_seeded_and_leaves_the_global_stream_alone() -> None:
    truth = torch.randint(0, 3, (300,), generator=torch.Generator().manual_seed(0))
    task, images = Task.of(nn.Sequential(nn.Dropout(0.5), *normalizing(3))), shown(truth.tolist(), 3)
    found = []
    for seed in (5, 99):
        torch.manual_seed(seed)
        found.append(evaluate(task, task.initial(), images, truth, Attack(), 3, batch_statistics=True))
        assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(seed)))
    assert found[0] == found[1]
    assert found[0].batch_statistics_accuracy is not None
    assert found[0].batch_statistics_accuracy < found[0].accuracy == 1.0
