"""Copies between devices: on a CPU nothing is copied; on a GPU the same numbers come back."""

from __future__ import annotations

import math

import pytest
import torch

from cosdefense.ops import read_together, surely_count, upload

TENSORS = [
    torch.tensor([[1.5, math.nan], [0.1, -math.inf]]),
    torch.tensor([3, 2**40]),
    torch.tensor([True, False]),
    torch.tensor(0.1, dtype=torch.float64),
    torch.empty(0),
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_reading_together_is_reading_one_after_the_other(device: str) -> None:
    found = read_together([tensor.to(device) for tensor in TENSORS])
    assert repr(found) == repr([tensor.tolist() for tensor in TENSORS])


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_uploaded_may_change_at_once(device: str) -> None:
    source = torch.arange(1_000_000)
    found = upload(source, torch.device(device)) + 0
    source.zero_()
    assert torch.equal(found.cpu(), torch.arange(1_000_000))


def test_on_a_cpu_nothing_is_copied() -> None:
    assert upload(TENSORS[0], torch.device("cpu")) is TENSORS[0]


@pytest.mark.parametrize(
    ("value", "weight", "expected"),
    [(1.0, 0.5, True), (0.0, 1.0, True), (1.0, 0.0, False), (0.0, 0.0, False), (math.nan, 1.0, False),
     (math.inf, 1.0, False), (-math.inf, 0.0, False)],
)  # fmt: skip
def test_rows_surely_count_if_they_are_finite_and_have_a_weight(value: float, weight: float, expected: bool) -> None:
    rows, weights = torch.ones(3, 4), torch.ones(3)
    rows[1, 2] = value
    weights[1] = weight
    if math.isfinite(value):
        rows[1] = value
    assert surely_count(rows, weights) is expected
