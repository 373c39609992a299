"""DBA: the authors' pixels, who adds which part, and that the simulator passes on who a client is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from cosdefense import get
from cosdefense.attacks import DBA, Backdoor
from cosdefense.simulation.loop import simulate
from worlds import digits_world

RNG = torch.Generator()
AUTHORS = {
    "mnist": (DBA(length=4, gap=2, row=3), 28, [(0, 0, 3), (0, 6, 9), (3, 0, 3), (3, 6, 9)]),
    "cifar-10": (DBA(length=6, gap=3, row=4), 32, [(0, 0, 5), (0, 9, 14), (4, 0, 5), (4, 9, 14)]),
}


def pixels(image: Tensor) -> set[tuple[int, int]]:
    """Where a channel is white; all channels must be alike."""
    assert bool((image == image[:1]).all())
    return {(row, column) for row, column in image[0].nonzero().tolist()}


@pytest.mark.parametrize("dataset", AUTHORS)
def test_the_authors_pixels(dataset: str) -> None:
    attack, side, bars = AUTHORS[dataset]
    images = torch.zeros(4, 3, side, side)
    parts = attack.add_training_trigger(images, torch.tensor([8, 5, 2, 7]))
    expected = [{(row, column) for column in range(first, last + 1)} for row, first, last in bars]
    assert [pixels(image) for image in parts] == expected
    whole = pixels(attack.add_trigger(images)[0])
    assert whole == set().union(*expected)
    assert len(whole) == {"mnist": 16, "cifar-10": 24}[dataset]  # the parts are disjoint
    assert not bool(images.any())  # a copy


def test_batches_of_several_clients_and_steps() -> None:
    """Clients 4 and 3 add the first and the last bar, to the first third of each of their two batches."""
    images, labels = torch.zeros(2, 2, 6, 1, 8, 8), torch.ones(2, 2, 6, dtype=torch.long)
    shown, taught = DBA(target=5).poison(images, labels, 10, RNG, torch.tensor([4, 3]))
    assert taught[0, 0].tolist() == [5, 5, 1, 1, 1, 1]
    assert pixels(shown[0, 1, 1]) == {(0, 0), (0, 1), (0, 2)}
    assert pixels(shown[1, 0, 0]) == {(2, 4), (2, 5), (2, 6)}
    assert pixels(shown[1, 0, 2]) == set()


def test_without_identities() -> None:
    images, labels = torch.zeros(6, 1, 8, 8), torch.ones(6, dtype=torch.long)
    assert pixels(DBA().poison(images, labels, 10, RNG)[0][0]) == {(0, 0), (0, 1), (0, 2)}
    assert pixels(DBA(part=1).poison(images, labels, 10, RNG, torch.arange(6))[0][1]) == {(0, 4), (0, 5), (0, 6)}


def test_success_is_measured_with_the_whole_trigger_on_other_classes() -> None:
    aim = DBA(target=2).prepare_evaluation(torch.zeros(3, 1, 8, 8), torch.tensor([1, 2, 3]), 10)
    assert aim[1].tolist() == [2, -1, 2]
    assert len(pixels(aim[0][0])) == 12


@dataclass(frozen=True)
class Noting(Backdoor):
    """Notes whose images it poisons."""

    seen: list[list[int]] = field(default_factory=list, compare=False)

    def poison(
        self, images: Tensor, labels: Tensor, n_classes: int, rng: torch.Generator, clients: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert clients is not None
        assert len(clients) == len(images)
        self.seen.append(clients.tolist())
        return super().poison(images, labels, n_classes, rng, clients)


@pytest.mark.parametrize("steps", [None, 3])
def test_the_simulator_says_whose_images_these_are(steps: int | None) -> None:
    attack = Noting(steps=steps)
    rounds = simulate(digits_world(), attack, get("fedavg"), rounds=3, sampled=10, batch=4, seed=0)
    expected = [round_.clients[round_.malicious].tolist() for round_ in rounds]
    assert attack.seen == [clients for clients in expected if clients]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"DBA.part must be from 0 to 3, got 4"):
        DBA(part=4)
    with pytest.raises(ValueError, match=r"DBA.length must be at least 1, got 0"):
        DBA(length=0)
    with pytest.raises(ValueError, match=r"DBA needs images of at least 4 × 10, got 8 × 8"):
        DBA(length=4, gap=2, row=3).add_trigger(torch.zeros(1, 1, 8, 8))
