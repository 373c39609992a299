"""The backdoor: where the trigger is stamped, what it is labelled, and what counts as success."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cosdefense import Cohort, Layout
from cosdefense.attacks import Backdoor
from cosdefense.simulation.evaluation import evaluate
from cosdefense.training.task import Task

RNG = torch.Generator()


def test_pinned_stamp() -> None:
    # Half of four images of 4 × 3 pixels: the two by two in the bottom right corner turn white.
    images, labels = torch.full((4, 1, 4, 3), 0.25), torch.tensor([5, 6, 7, 8])
    shown, taught = Backdoor(target=1, fraction=0.5, size=2).poison(images, labels, 10, RNG)
    stamped = [[0.25] * 3, [0.25] * 3, [0.25, 1, 1], [0.25, 1, 1]]
    assert shown[0, 0].tolist() == shown[1, 0].tolist() == stamped
    assert torch.equal(shown[2:], images[2:])
    assert taught.tolist() == [1, 1, 7, 8]
    assert labels.tolist() == [5, 6, 7, 8]  # copies
    assert float(images.max()) == 0.25


def test_class_zero_is_a_class_like_any_other() -> None:
    images, labels = torch.zeros(4, 1, 5, 5), torch.tensor([0, 1, 2, 0])
    assert Backdoor(target=0, fraction=1.0).poison(images, labels, 3, RNG)[1].tolist() == [0] * 4
    assert Backdoor(target=0).prepare_evaluation(images, labels, 3)[1].tolist() == [-1, 0, 0, -1]


def test_success_is_not_counted_on_images_of_the_target() -> None:
    images, labels = torch.rand(5, 3, 6, 6), torch.tensor([2, 0, 2, 1, 9])
    shown, wanted = Backdoor(target=2, size=1).prepare_evaluation(images, labels, 10)
    assert wanted.tolist() == [-1, 2, -1, 2, 2]
    assert bool((shown[:, :, 5, 5] == 1).all())  # every image is stamped, in every channel
    assert torch.equal(shown[:, :, :5], images[:, :, :5])


class Corner(nn.Module):
    """Answers class 1 to a white last pixel, class 0 to anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.95], [1.0]]))

    def forward(self, images: Tensor) -> Tensor:
        last = images[:, 0, -1, -1]
        return torch.stack([self.weight[0] * torch.ones_like(last), self.weight[1] * last], dim=1)


def test_success_is_measured_in_raw_pixels() -> None:
    """White is 1 before the model normalises: this one subtracts nothing and would not believe a 1 it had rescaled."""
    task = Task.of(Corner())
    images, labels = torch.zeros(6, 1, 4, 4, dtype=torch.uint8), torch.tensor([1, 1, 1, 0, 0, 0])
    measured = evaluate(task, task.initial(), images, labels, Backdoor(target=1), 2)
    assert measured.attack_success == 1.0  # of the three black zeros, all
    assert measured.accuracy == 0.5  # without the trigger it says 0 to all
    measured = evaluate(task, task.initial(), images, labels, Backdoor(target=0), 2)
    assert measured.attack_success == 0.0  # the three ones, stamped, are still ones
    shifted = Task.of(Corner(), mean=(-1.0,), std=(2.0,))  # the model sees (x + 1) / 2: white is 1 to it as well
    assert evaluate(shifted, shifted.initial(), images, labels, Backdoor(target=1), 2).attack_success == 1.0
    everybody = torch.zeros(6, dtype=torch.int64)
    assert evaluate(task, task.initial(), images, everybody, Backdoor(target=0), 2).attack_success is None


@given(
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.integers(1, 3),
    st.tuples(st.integers(3, 6), st.integers(3, 6)),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_slow_twin(b: int, fraction: float, size: int, shape: tuple[int, int], target: int, channels: int) -> None:
    """Pixel by pixel, for two clients with two batches each."""
    height, width = shape
    rng = torch.Generator().manual_seed(b)
    images = 0.9 * torch.rand(2, 2, b, channels, height, width, generator=rng)
    labels = torch.randint(0, 5, (2, 2, b), generator=rng)
    shown, taught = Backdoor(target, fraction, size=size).poison(images, labels, 5, RNG)
    spoiled = shown.ne(images).flatten(3).any(dim=3)
    count = max(1, round(fraction * b))
    assert spoiled.sum(dim=2).tolist() == [[count, count]] * 2  # of every batch
    for client in range(2):
        for step in range(2):
            for i in range(b):
                touched = bool(spoiled[client, step, i])
                assert int(taught[client, step, i]) == (target if touched else int(labels[client, step, i]))
                for row in range(height):
                    for column in range(width):
                        inside = row >= height - size and column >= width - size
                        before = images[client, step, i, :, row, column].tolist()
                        expected = [1.0] * channels if touched and inside else before
                        assert shown[client, step, i, :, row, column].tolist() == expected


def test_model_replacement_by_sampled_counts() -> None:
    # Two of five who take part are malicious: 5 / 2. Nobody else's row is taken from the answer.
    rows = torch.tensor([[1.0, 2.0]] * 5)
    cohort = Cohort.of(rows, torch.zeros(2), Layout((("w", (2,)),), "w", 2))
    malicious = torch.tensor([True, False, False, True, False])
    assert Backdoor(scale=None).forge(cohort, malicious, None)[0][malicious].tolist() == [[2.5, 5]] * 2
    assert Backdoor(scale=3.0).forge(cohort, malicious, None)[0][malicious].tolist() == [[3, 6]] * 2
    assert Backdoor().forge(cohort, malicious, None)[0][malicious].tolist() == [[1, 2]] * 2


def test_attackers_train_like_everybody() -> None:
    effort = Backdoor().plan_training(torch.zeros(2), Layout((("w", (2,)),), "w", 2), 1, None)
    assert effort.steps is None
    assert not effort.ascend


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"target": -1}, "Backdoor.target must be a class from 0 on, got -1"),
        ({"fraction": 0.0}, r"Backdoor.fraction must be in \(0, 1\], got 0.0"),
        ({"fraction": 1.1}, r"Backdoor.fraction must be in \(0, 1\], got 1.1"),
        ({"size": 0}, "Backdoor.size must be at least 1, got 0"),
        ({"scale": 0.0}, "Backdoor.scale must be positive and finite, got 0.0"),
        ({"scale": math.inf}, "Backdoor.scale must be positive and finite, got inf"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Backdoor(**options)  # type: ignore[arg-type]


def test_mistakes_that_only_the_data_show_are_named() -> None:
    images, labels = torch.zeros(4, 1, 5, 4), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match=r"Backdoor.target must be a class below 3, got 3"):
        Backdoor(target=3).poison(images, labels, 3, RNG)
    with pytest.raises(ValueError, match=r"Backdoor.target must be a class below 3, got 3"):
        Backdoor(target=3).prepare_evaluation(images, labels, 3)
    with pytest.raises(ValueError, match=r"Backdoor.size must fit images of 5 × 4, got 5"):
        Backdoor(size=5).poison(images, labels, 3, RNG)
    with pytest.raises(ValueError, match=r"Backdoor.size must fit images of 5 × 4, got 5"):
        Backdoor(size=5).prepare_evaluation(images, labels, 3)
