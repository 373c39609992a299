"""Measures of a model beside its loss, by name: functions of all outputs and targets of the test samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.dataset import IGNORED
from .losses import choose_classes

Measure = Callable[[Tensor, Tensor], float]  # (outputs, targets)


@dataclass(frozen=True)
class Metric:
    """A measure and which way it is better."""

    name: str
    measure: Measure
    higher_is_better: bool = True


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of classes that are right."""
    counted = targets != IGNORED
    return float((choose_classes(outputs, targets) == targets)[counted].double().mean())


def auroc(outputs: Tensor, targets: Tensor) -> float:
    """How often a sample of a class scores above one of another class, a tie counting half; the mean over classes.

    With two classes the score is the logit of the second, and the mean is the usual area under the ROC curve. NaN where
    a class is missing.
    """
    if outputs.numel() == targets.numel():
        return _area(outputs.reshape(-1), targets.reshape(-1) == 1)
    if outputs.shape[1] == 2:
        return _area(outputs[:, 1] - outputs[:, 0], targets == 1)
    scores = outputs.softmax(dim=1)
    return sum(_area(scores[:, c], targets == c) for c in range(scores.shape[1])) / scores.shape[1]


def f1(outputs: Tensor, targets: Tensor) -> float:
    """The harmonic mean of precision and recall: of the second of two classes, or the mean over more than two."""
    answers, n_classes = choose_classes(outputs, targets), outputs.shape[1] if outputs.ndim > targets.ndim else 1
    counted = [1] if n_classes <= 2 else range(n_classes)
    return sum(_f1_of(answers == c, targets == c) for c in counted) / len(counted)


def mean_iou(outputs: Tensor, targets: Tensor) -> float:
    """Of segmentation: intersection over union of each class that occurs, the mean over classes."""
    answers, n_classes = choose_classes(outputs, targets), max(2, outputs.shape[1])
    pairs = [((answers == c) & (targets >= 0), targets == c) for c in range(n_classes)]
    shares = [float((a & b).sum() / (a | b).sum()) for a, b in pairs if bool((a | b).any())]
    return sum(shares) / len(shares) if shares else math.nan


def mse(outputs: Tensor, targets: Tensor) -> float:
    """The mean squared error."""
    return float((outputs.reshape(targets.shape) - targets).double().square().mean())


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    return float((outputs.reshape(targets.shape) - targets).double().abs().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of the variance that is explained; below 0: worse than the mean. NaN where nothing varies."""
    wanted = targets.double()
    errors = (outputs.reshape(targets.shape).double() - wanted).square().sum()
    spread = (wanted - wanted.mean(dim=0)).square().sum()
    return float(1 - errors / spread) if float(spread) > 0 else math.nan


_LOWER_IS_BETTER = (mse, mae)
METRICS: dict[str, Measure] = {
    "accuracy": accuracy,
    "auroc": auroc,
    "f1": f1,
    "mean-iou": mean_iou,
    "mse": mse,
    "mae": mae,
    "r2": r2,
}


def make_metric(name: str, measure: Measure) -> Metric:
    """A metric of the catalog, or one's own: there `measure.lower_is_better = True` says that less is better."""
    lower = measure in _LOWER_IS_BETTER or bool(getattr(measure, "lower_is_better", False))
    return Metric(name, measure, not lower)


def _area(scores: Tensor, positive: Tensor) -> float:
    """From the ranks of the positive samples; equal scores share the mean of their ranks."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    if not n_positive or not n_negative or not bool(scores.isfinite().all()):
        return math.nan
    _, groups, sizes = torch.unique(scores, sorted=True, return_inverse=True, return_counts=True)
    last = sizes.cumsum(0).double()
    ranks = (last - (sizes.double() - 1) / 2)[groups]
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def _f1_of(answered: Tensor, true: Tensor) -> float:
    total = float(answered.sum() + true.sum())
    return 2 * float((answered & true).sum()) / total if total else math.nan
