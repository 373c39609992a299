"""Losses and metrics against scikit-learn and against their definitions; optimizers against plain loops of torch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from cosdefense.training import metrics
from cosdefense.training.executor import train_clients
from cosdefense.training.losses import LOSSES, choose_classes, sum_loss
from cosdefense.training.metrics import make_metric
from cosdefense.training.optimizers import OPTIMIZERS, LocalOptimizer
from cosdefense.training.task import Task

RNG = torch.Generator().manual_seed(0)


@pytest.mark.slow
def test_metrics_are_those_of_scikit_learn() -> None:
    judge = pytest.importorskip("sklearn.metrics")
    logits, labels = torch.randn(60, generator=RNG).round(decimals=1), torch.randint(0, 2, (60,), generator=RNG)
    assert metrics.auroc(logits[:, None], labels) == pytest.approx(judge.roc_auc_score(labels, logits))
    pairs = torch.stack([torch.zeros(60), logits], dim=1)
    assert metrics.auroc(pairs, labels) == pytest.approx(judge.roc_auc_score(labels, logits))
    assert metrics.f1(logits, labels) == pytest.approx(judge.f1_score(labels, logits > 0))
    assert metrics.f1(pairs, labels) == pytest.approx(judge.f1_score(labels, logits > 0))
    outputs, classes = torch.randn(90, 4, generator=RNG), torch.randint(0, 4, (90,), generator=RNG)
    assert metrics.auroc(outputs, classes) == pytest.approx(
        judge.roc_auc_score(classes, outputs.softmax(dim=1).double(), multi_class="ovr"), abs=1e-6
    )
    assert metrics.f1(outputs, classes) == pytest.approx(judge.f1_score(classes, outputs.argmax(1), average="macro"))
    assert metrics.accuracy(outputs, classes) == pytest.approx(judge.accuracy_score(classes, outputs.argmax(1)))
    values, wanted = torch.randn(50, 1, generator=RNG), torch.randn(50, generator=RNG)
    for name in ("r2_score", "mean_squared_error", "mean_absolute_error"):
        short = {"r2_score": "r2", "mean_squared_error": "mse", "mean_absolute_error": "mae"}[name]
        assert metrics.METRICS[short](values, wanted) == pytest.approx(getattr(judge, name)(wanted, values), rel=1e-5)
    answers, truth = outputs.argmax(1), classes
    assert metrics.mean_iou(outputs, classes) == pytest.approx(judge.jaccard_score(truth, answers, average="macro"))


def test_metrics_that_have_no_value_are_not_a_number() -> None:
    assert math.isnan(metrics.auroc(torch.rand(3), torch.ones(3, dtype=torch.int64)))
    assert math.isnan(metrics.r2(torch.rand(3), torch.ones(3)))
    assert make_metric("mse", metrics.mse).higher_is_better is False
    assert make_metric("f1", metrics.f1).higher_is_better is True


def test_losses_of_one_output() -> None:
    outputs, labels, values = torch.randn(7, 1, generator=RNG), torch.tensor([0, 1, 1, 0, 1, 0, 0]), torch.rand(7)
    expected = binary_cross_entropy_with_logits(outputs[:, 0], labels.float())
    assert torch.equal(LOSSES["binary-cross-entropy"](outputs, labels), expected)
    assert torch.equal(LOSSES["mse"](outputs, values), mse_loss(outputs[:, 0], values))  # and not [7, 7] differences
    assert choose_classes(outputs, labels).tolist() == (outputs[:, 0] > 0).long().tolist()
    with pytest.raises(ValueError, match=r"outputs of shape \(7,\), as the targets, got \(7, 2\)"):
        LOSSES["mse"](torch.rand(7, 2), values)


def test_sums_of_batches_add_up() -> None:
    outputs, labels = torch.randn(10, 3, generator=RNG), torch.randint(0, 3, (10,), generator=RNG)
    for name, targets in (("cross-entropy", labels), ("huber", torch.rand(10, 3))):
        parts = [sum_loss(LOSSES[name], outputs[own], targets[own]) for own in (slice(0, 4), slice(4, 10))]
        assert float(sum(parts)) / 10 == pytest.approx(float(LOSSES[name](outputs, targets)))


def test_places_of_segmentation() -> None:
    outputs, truth = torch.randn(2, 3, 4, 4, generator=RNG), torch.randint(0, 3, (2, 4, 4), generator=RNG)
    assert torch.equal(LOSSES["cross-entropy"](outputs, truth), cross_entropy(outputs, truth))
    truth[0] = -100  # ignored
    right = (outputs[1].argmax(0) == truth[1]).float().mean()
    assert metrics.accuracy(outputs, truth) == pytest.approx(float(right))


def plain_loop(
    model: nn.Module, kind: type[torch.optim.Optimizer], inputs: Tensor, targets: Tensor, **options: float
) -> Tensor:
    trained = copy.deepcopy(model).train()
    optimizer = kind(trained.parameters(), **options)  # type: ignore[arg-type]
    for batch, wanted in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        mse_loss(trained(batch)[:, 0], wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    layout = Task.of(model).layout
    return (layout.flatten(trained.state_dict()) - layout.flatten(model.state_dict())).detach()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_optimizers_equal_a_plain_loop(name: str, kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)).double()
    inputs = torch.rand(2, 5, 6, 3, dtype=torch.float64, generator=RNG)
    targets = torch.rand(2, 5, 6, dtype=torch.float64, generator=RNG)
    task = Task.of(model, loss=LOSSES["mse"])
    trainer = LocalOptimizer(0.01, weight_decay=0.1, make=OPTIMIZERS[name])
    found = train_clients(task, trainer, task.initial(), inputs, targets)
    for update, own, wanted in zip(found, inputs, targets, strict=True):
        expected = plain_loop(model, kind, own, wanted, lr=0.01, weight_decay=0.1)
        assert torch.allclose(update, expected, atol=1e-12)
