"""Values to predict: the progress of diabetes one year on, of patients of four age groups."""

from __future__ import annotations

import torch

from cosdefense.data import Dataset, split_dataset

GROUPS = ("youngest", "younger", "older", "oldest")


def diabetes() -> Dataset:
    """442 patients, ten measurements each, from scikit-learn. Targets are standardized."""
    from sklearn.datasets import load_diabetes

    samples = load_diabetes()
    inputs = torch.tensor(samples.data, dtype=torch.float32)
    targets = torch.tensor(samples.target, dtype=torch.float32)
    owners = inputs[:, 0].argsort().argsort() * len(GROUPS) // len(inputs)  # the first column is the age
    return split_dataset(
        "diabetes", inputs, (targets - targets.mean()) / targets.std(), clients=GROUPS, owners=owners,
        mean=tuple(inputs.mean(dim=0).tolist()), std=tuple(inputs.std(dim=0).tolist()),
    )  # fmt: skip


def within_half(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A metric of one's own: the share of predictions that are off by less than half a standard deviation."""
    return float(((outputs.reshape(targets.shape) - targets).abs() < 0.5).float().mean())
