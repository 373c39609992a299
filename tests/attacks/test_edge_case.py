"""Edge cases: rotated images of one class, by hand; success is that on rotated test images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Layout
from cosdefense.attacks import EdgeCase

RNG = torch.Generator()


def corner(n: int) -> Tensor:
    """Images whose top left pixel has the number of the image."""
    images = torch.zeros(n, 1, 3, 3)
    images[:, 0, 0, 0] = torch.arange(1, n + 1) / n
    return images


def test_pinned_batches() -> None:
    """Two batches of six. The first has a 7 in two places, the second has none."""
    images = torch.stack([corner(6), corner(6)])
    labels = torch.tensor([[0, 7, 2, 7, 4, 5], [0, 1, 2, 3, 4, 5]])
    shown, taught = EdgeCase(fraction=0.5).poison(images, labels, 10, RNG)
    assert taught.tolist() == [[1, 1, 1, 7, 4, 5], [0, 1, 2, 3, 4, 5]]
    for place, source in ((0, 1), (1, 3), (2, 1)):  # the second, the fourth, the second again
        assert torch.equal(shown[0, place], torch.rot90(images[0, source], 1, (-2, -1)))
    assert torch.equal(shown[0, 3:], images[0, 3:])
    assert torch.equal(shown[1], images[1])


def test_a_quarter_turn_goes_against_the_clock() -> None:
    images = corner(1)
    for turns, place in ((1, (2, 0)), (2, (2, 2)), (3, (0, 2))):
        shown, _ = EdgeCase(quarter_turns=turns, fraction=1.0).poison(images, torch.tensor([7]), 10, RNG)
        assert shown[0, 0].nonzero().tolist() == [list(place)]


def test_success_is_that_on_rotated_images_of_the_source() -> None:
    images = corner(4)
    shown, wanted = EdgeCase().prepare_evaluation(images, torch.tensor([7, 1, 7, 3]), 10)
    assert wanted.tolist() == [1, -1, 1, -1]
    assert torch.equal(shown, torch.rot90(images, 1, (-2, -1)))


def test_scale_and_steps() -> None:
    layout = Layout((("w", (2,)),), "w", 2)
    cohort = Cohort.of(torch.ones(4, 2), torch.zeros(2), layout)
    malicious = torch.tensor([True, False, False, False])
    assert EdgeCase(scale=None).forge(cohort, malicious, None)[0][0].tolist() == [4, 4]
    assert EdgeCase(scale=3.0).forge(cohort, malicious, None)[0][0].tolist() == [3, 3]
    assert EdgeCase(steps=6).plan_training(cohort.params, layout, 1, None).steps == 6


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"source": 2, "target": 2}, "EdgeCase needs two different classes from 0 on, got 2 and 2"),
        ({"source": -1}, "EdgeCase needs two different classes from 0 on, got -1 and 1"),
        ({"quarter_turns": 4}, "EdgeCase.quarter_turns must be from 1 to 3, got 4"),
        ({"fraction": 0.0}, r"EdgeCase.fraction must be in \(0, 1\], got 0.0"),
        ({"scale": 0.0}, "EdgeCase.scale must be positive and finite, got 0.0"),
        ({"steps": 0}, "EdgeCase.steps must be at least 1, got 0"),
    ],
)
def test_mistakes_are_named(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EdgeCase(**options)  # type: ignore[arg-type]


def test_images_and_classes_must_fit() -> None:
    wide, labels = torch.zeros(1, 1, 2, 4), torch.tensor([7])
    with pytest.raises(ValueError, match=r"EdgeCase.quarter_turns must be 2 for images of 2 × 4"):
        EdgeCase().poison(wide, labels, 10, RNG)
    assert EdgeCase(quarter_turns=2).poison(wide, labels, 10, RNG)[0].shape == wide.shape
    with pytest.raises(ValueError, match="EdgeCase needs classes below 5, got 7 and 1"):
        EdgeCase().prepare_evaluation(corner(1), labels, 5)
