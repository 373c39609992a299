"""Every attack against its formula; that it reaches the server is shown in the simulator's tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cosdefense import Attack, Cohort, Layout, get
from cosdefense.attacks import (
    Camouflage,
    InnerProduct,
    LabelFlip,
    Noise,
    OrthogonalInnerProduct,
    SignFlip,
    TrainingPlan,
)
from cosdefense.training.executor import train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task

MALICIOUS = torch.tensor([False, True, False, True])


def cohort_of(rows: list[list[float]], seed: int = 0) -> Cohort:
    d = len(rows[0])
    return Cohort.of(torch.tensor(rows), torch.zeros(d), Layout((("w", (d,)),), "w", d), seed=seed)


def forged(attack: Attack, cohort: Cohort, malicious: torch.Tensor = MALICIOUS) -> list[list[float]]:
    rows, _ = attack.forge(cohort, malicious, attack.init())
    return rows[malicious].tolist()


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
    malicious = torch.arange(10) < 3
    rows, _ = InnerProduct(5.0).forge(cohort, malicious, None)
    sent = torch.where(malicious[:, None], rows, cohort.updates)
    assert float(sent.mean(dim=0) @ cohort.updates[~malicious].mean(dim=0)) < 0


def test_camouflage_subtracts_the_mean_from_each_own_update() -> None:
    """The honest mean is (2, 4), that of the malicious clients (15, 5), used where there is no honest client."""
    assert forged(Camouflage(2.0), cohort_of(ROWS)) == [[6.0, 2.0], [16.0, -8.0]]
    assert forged(Camouflage(1.0, "partial"), cohort_of(ROWS)) == [[-5.0, 5.0], [5.0, -5.0]]
    everybody = torch.ones(4, dtype=torch.bool)
    assert forged(Camouflage(2.0), cohort_of(ROWS), everybody) == forged(
        Camouflage(2.0, "partial"), cohort_of(ROWS), everybody
    )
    nobody = ~everybody
    assert Camouflage(2.0, "partial").forge(cohort_of(ROWS), nobody, None)[0].tolist() == ROWS


def test_camouflage_stops_a_plain_mean_with_the_documented_strength() -> None:
    """Where malicious clients hold the honest mean, n / n_malicious leaves a mean of zero."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 30, generator=rng)
    cohort = cohort_of(torch.cat([rows, rows.mean(dim=0).expand(3, 30)]).tolist())
    malicious = torch.arange(10) > 6
    sent, _ = Camouflage(10 / 3).forge(cohort, malicious, None)
    left = torch.where(malicious[:, None], sent, cohort.updates).mean(dim=0)
    torch.testing.assert_close(left, torch.zeros(30), atol=1e-6, rtol=0)


@pytest.mark.parametrize("strength", [0.0, -1.0, float("inf"), float("nan")])
def test_camouflage_needs_a_strength(strength: float) -> None:
    with pytest.raises(ValueError, match="strength must be positive and finite"):
        Camouflage(strength)


def test_orthogonal_inner_product_hides_its_last_layer_alone() -> None:
    """The body is inner product manipulation; the head is what is left of it beside the global head (0, 2)."""
    layout = Layout((("body", (1,)), ("head", (1, 2))), "head", 3)
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]])
    cohort = Cohort.of(rows, torch.tensor([9.0, 0.0, 2.0]), layout)
    assert forged(OrthogonalInnerProduct(5.0), cohort) == [[-10.0, -15.0, 0.0]] * 2
    verdict, _ = get("cosdefense")(replace(cohort, updates=torch.tensor(ROWS_SENT)), (None, None))
    assert verdict.weights.tolist() == [0.0, 1.0, 0.0, 1.0]


ROWS_SENT = [[1.0, 2.0, 3.0], [-10.0, -15.0, 0.0], [3.0, 4.0, 5.0], [-10.0, -15.0, 0.0]]


def test_sign_flip_reverses_its_own_update() -> None:
    assert forged(SignFlip(2.0), cohort_of(ROWS)) == [[-20.0, -20.0], [-40.0, 0.0]]


def test_noise_is_noise() -> None:
    cohort = cohort_of(torch.zeros(4, 10_000).tolist())
    rows = torch.tensor(forged(Noise(0.5), cohort))
    assert float(rows.mean()) == pytest.approx(0, abs=0.02)
    assert float(rows.std()) == pytest.approx(0.5, rel=0.02)
    assert not torch.equal(rows[0], rows[1])
    assert forged(Noise(0.5), cohort_of(torch.zeros(4, 10_000).tolist(), seed=1)) != rows.tolist()


def test_noise_depends_on_the_client_not_on_its_row() -> None:
    """The same client sends the same noise wherever its row stands."""
    here = cohort_of(ROWS)
    there = Cohort.of(here.updates, here.params, here.layout, torch.tensor([0, 3, 2, 1]))
    assert forged(Noise(), here) == forged(Noise(), there)[::-1]


def test_noise_added_of_the_honest_update() -> None:
    """The same noise as without the option, added to what the attacker would have sent."""
    cohort = cohort_of(ROWS)
    instead, additive = (torch.tensor(forged(Noise(0.5, additive=flag), cohort)) for flag in (False, True))
    assert torch.allclose(additive, instead + cohort.updates[MALICIOUS], atol=1e-6)
    assert not torch.allclose(additive, instead)
    assert forged(Noise(0.0, additive=True), cohort) == [ROWS[1], ROWS[3]]
    assert cohort.updates.tolist() == ROWS  # a copy


def test_noise_added_has_the_promised_size() -> None:
    rows = [[100.0] * 10_000] * 4
    found = torch.tensor(forged(Noise(2.0, additive=True), cohort_of(rows)))
    assert float(found.mean()) == pytest.approx(100, abs=4 * 2 / 20_000**0.5)
    assert float(found.std()) == pytest.approx(2, rel=0.02)  # 20,000 draws: ±0.5 %


def test_sign_flip_at_every_step_ascends_and_keeps_the_sign() -> None:
    """An update from ascent must not be reversed again."""
    assert forged(SignFlip(2.0, every_step=True), cohort_of(ROWS)) == [[20.0, 20.0], [40.0, 0.0]]
    cohort = cohort_of(ROWS)
    assert SignFlip(every_step=True).plan_training(cohort.params, cohort.layout, 2, None) == TrainingPlan(
        None, ascend=True
    )
    assert SignFlip().plan_training(cohort.params, cohort.layout, 2, None) == TrainingPlan()


def test_sign_flip_at_every_step_differs_from_two_steps_on() -> None:
    """With one step it equals reversing the update. With two, the second step starts elsewhere."""
    torch.manual_seed(0)
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double())
    images, labels = torch.rand(1, 2, 5, 1, 2, 2, dtype=torch.float64), torch.randint(0, 3, (1, 2, 5))
    start = task.initial()

    def sent(attack: SignFlip, steps: int) -> Tensor:
        trainer = LocalSGD(0.5, ascend=attack.plan_training(start, task.layout, 1, None).ascend)
        trained = train_clients(task, trainer, start, images[:, :steps], labels[:, :steps])
        rows, _ = attack.forge(Cohort.of(trained, start, task.layout), torch.tensor([True]), None)
        return rows[0]

    assert torch.allclose(sent(SignFlip(), 1), sent(SignFlip(every_step=True), 1), atol=1e-14)
    first, _ = task.gradient(start, images[0, 0], labels[0, 0])
    second, _ = task.gradient(start + 0.5 * first, images[0, 1], labels[0, 1])
    assert torch.allclose(sent(SignFlip(every_step=True), 2), 0.5 * (first + second), atol=1e-14)
    assert not torch.allclose(sent(SignFlip(), 2), sent(SignFlip(every_step=True), 2), atol=1e-4)


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
    assert LabelFlip(1, 7).prepare_evaluation(images, labels, 10)[1].tolist() == [-1, 7, -1, 7]
    assert LabelFlip().prepare_evaluation(images, labels, 3)[1].tolist() == [2, -1, 0, -1]
    assert InnerProduct().prepare_evaluation(images, labels, 10) is None


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
    rows, _ = Attack().forge(cohort, MALICIOUS, None)
    assert rows is cohort.updates
