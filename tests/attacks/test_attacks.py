"""Every attack against its formula; that it reaches the server is shown in the simulator's tests."""

from __future__ import annotations

import pytest
import torch

from cosdefense import Attack, Cohort, Layout
from cosdefense.attacks import InnerProduct, LabelFlip, Noise, SignFlip

LIARS = torch.tensor([False, True, False, True])


def cohort_of(rows: list[list[float]], seed: int = 0) -> Cohort:
    d = len(rows[0])
    return Cohort.of(torch.tensor(rows), torch.zeros(d), Layout((("w", (d,)),), "w", d), seed=seed)


def forged(attack: Attack, cohort: Cohort, liars: torch.Tensor = LIARS) -> list[list[float]]:
    rows, _ = attack.forge(cohort, liars, attack.init())
    return rows[liars].tolist()


ROWS = [[1.0, 2.0], [10.0, 10.0], [3.0, 6.0], [20.0, 0.0]]


def test_inner_product_turns_the_honest_mean_around() -> None:
    assert forged(InnerProduct(5.0), cohort_of(ROWS)) == [[-10.0, -20.0]] * 2
    assert forged(InnerProduct(0.5), cohort_of(ROWS)) == [[-1.0, -2.0]] * 2


def test_inner_product_without_honest_clients() -> None:
    everybody = torch.ones(4, dtype=torch.bool)
    assert forged(InnerProduct(1.0), cohort_of(ROWS), everybody) == [[-8.5, -4.5]] * 4


def test_inner_product_turns_the_mean_around() -> None:
    """The attack's promise: the inner product of the honest mean and the poisoned mean is negative."""
    rng = torch.Generator().manual_seed(0)
    cohort = cohort_of(torch.randn(10, 30, generator=rng).tolist())
    liars = torch.arange(10) < 3
    rows, _ = InnerProduct(5.0).forge(cohort, liars, None)
    sent = torch.where(liars[:, None], rows, cohort.updates)
    assert float(sent.mean(dim=0) @ cohort.updates[~liars].mean(dim=0)) < 0


def test_sign_flip_reverses_its_own_update() -> None:
    assert forged(SignFlip(2.0), cohort_of(ROWS)) == [[-20.0, -20.0], [-40.0, 0.0]]


def test_noise_is_noise() -> None:
    cohort = cohort_of(torch.zeros(4, 10_000).tolist())
    rows = torch.tensor(forged(Noise(0.5), cohort))
    assert float(rows.mean()) == pytest.approx(0, abs=0.02)
    assert float(rows.std()) == pytest.approx(0.5, rel=0.02)
    assert not torch.equal(rows[0], rows[1])
    assert forged(Noise(0.5), cohort_of(torch.zeros(4, 10_000).tolist(), seed=1)) != rows.tolist()


def test_noise_is_an_identitys_own() -> None:
    """The same client sends the same noise wherever its row stands."""
    here = cohort_of(ROWS)
    there = Cohort.of(here.updates, here.params, here.layout, torch.tensor([0, 3, 2, 1]))
    assert forged(Noise(), here) == forged(Noise(), there)[::-1]


def flip(attack: LabelFlip, labels: list[int], n_classes: int = 10) -> list[int]:
    images = torch.zeros(len(labels), 1, 2, 2)
    shown, flipped = attack.poison(images, torch.tensor(labels), n_classes, torch.Generator())
    assert shown is images
    return flipped.tolist()


def test_label_flip() -> None:
    assert flip(LabelFlip(), [0, 1, 4, 9]) == [9, 8, 5, 0]
    assert flip(LabelFlip(), [0, 1, 2], n_classes=3) == [2, 1, 0]
    assert flip(LabelFlip(source=1, target=7), [0, 1, 7, 1]) == [0, 7, 7, 7]
    assert flip(LabelFlip(source=0, target=1), [0, 1, 2]) == [1, 1, 2]  # class 0 is a class like any other


def test_label_flip_says_what_it_wants() -> None:
    images, labels = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 1])
    assert LabelFlip(1, 7).aim(images, labels, 10)[1].tolist() == [-1, 7, -1, 7]
    assert LabelFlip().aim(images, labels, 3)[1].tolist() == [2, -1, 0, -1]
    assert InnerProduct().aim(images, labels, 10) is None


def test_label_flip_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="both source and target, or neither, got 1 and None"):
        LabelFlip(source=1)
    with pytest.raises(ValueError, match="differs from its target, got 2 for both"):
        LabelFlip(2, 2)
    with pytest.raises(ValueError, match="classes from 0 on, got -1 and 2"):
        LabelFlip(-1, 2)
    with pytest.raises(ValueError, match="classes below 3, got 1 and 7"):
        flip(LabelFlip(1, 7), [0, 1], n_classes=3)


def test_no_attack_does_nothing() -> None:
    cohort = cohort_of(ROWS)
    rows, _ = Attack().forge(cohort, LIARS, None)
    assert rows is cohort.updates
