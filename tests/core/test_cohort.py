"""Cohort: views, selections, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Layout, MissingTrustedData, TrustedData
from cosdefense.core import UnknownLayer

LAYOUT = Layout((("body", (3,)), ("head", (2, 1)), ("norm.running_mean", (2,))), "head", 5)


def cohort() -> Cohort:
    updates = torch.arange(21.0).reshape(3, 7)
    return Cohort.of(updates, torch.arange(7.0), LAYOUT, torch.tensor([7, 3, 5]))


def test_layer_views_the_head_by_default() -> None:
    updates, weights = cohort().layer()
    assert updates.tolist() == [[3, 4], [10, 11], [17, 18]]
    assert weights.tolist() == [3, 4]
    assert cohort().layer("body")[1].tolist() == [0, 1, 2]


def test_layers_that_are_not_there_are_named() -> None:
    with pytest.raises(UnknownLayer, match=r"layer must be one of \['body', 'head'\], got 'norm.running_mean'"):
        cohort().layer("norm.running_mean")
    headless = Cohort.of(torch.zeros(1, 7), torch.zeros(7), Layout(LAYOUT.shapes, None, 5))
    with pytest.raises(UnknownLayer, match=r"pass head=\.\.\. .*, one of \['head'\]"):
        headless.layer()


def test_views_are_not_copies() -> None:
    whole = cohort()
    assert whole.layer()[0].untyped_storage().data_ptr() == whole.updates.untyped_storage().data_ptr()
    assert whole.trainable().shape == (3, 5)


def test_only() -> None:
    some = cohort().only(torch.tensor([True, False, True]))
    assert some.clients.tolist() == [7, 5]
    assert some.updates[1].tolist() == [14, 15, 16, 17, 18, 19, 20]
    assert len(some) == len(some.weights) == 2


def test_weights() -> None:
    assert cohort().weights.tolist() == [1, 1, 1]
    given = Cohort.of(torch.zeros(3, 7), torch.zeros(7), LAYOUT, weights=torch.tensor([20, 0, 5]))
    assert given.weights.tolist() == [20, 0, 5]
    assert given.weights.dtype == torch.float32


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ([1.0, 2.0], r"weights need shape \(3,\), got \(2,\)"),
        ([1.0, -2.0, 1.0], "weights must be finite and at least 0, got"),
        ([1.0, float("nan"), 1.0], "weights must be finite and at least 0, got"),
        ([1.0, float("inf"), 1.0], "weights must be finite and at least 0, got"),
        ([0.0, 0.0, 0.0], "weights must not all be 0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Cohort.of(torch.zeros(3, 7), torch.zeros(7), LAYOUT, weights=torch.tensor(weights))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")
def test_devices() -> None:
    updates = torch.zeros(3, 7, device="cuda")
    assert Cohort.of(updates, torch.zeros(7, device="cuda"), LAYOUT, torch.arange(3)).clients.is_cuda
    with pytest.raises(ValueError, match="params must be on cuda:0 as the updates are, got cpu"):
        Cohort.of(updates, torch.zeros(7), LAYOUT)


def test_trusted_data() -> None:
    with pytest.raises(MissingTrustedData, match="clean data at the server"):
        _ = cohort().trusted

    class Mine(TrustedData):
        def update(self, params: Tensor, seed: int) -> Tensor:
            return params

    mine = Mine()
    assert Cohort.of(torch.zeros(1, 7), torch.zeros(7), LAYOUT, trusted_data=mine).trusted is mine
    with pytest.raises(MissingTrustedData, match="test models on clean data"):  # what it does not offer is refused
        mine.predict(torch.zeros(7))
    with pytest.raises(MissingTrustedData, match="a sample of every client's data"):
        mine.guides(torch.arange(1), torch.zeros(7), 0)


@pytest.mark.parametrize(
    ("updates", "params", "clients", "complaint"),
    [
        (torch.zeros(3, 6), torch.zeros(7), None, r"updates need shape \(n, 7\), got \(3, 6\)"),
        (torch.zeros(7), torch.zeros(7), None, r"updates need shape \(n, 7\), got \(7,\)"),
        (torch.zeros(3, 7), torch.zeros(6), None, r"params need shape \(7,\), got \(6,\)"),
        (torch.zeros(3, 7), torch.zeros(7), torch.arange(2), r"clients need shape \(3,\), got \(2,\)"),
    ],
)
def test_wrong_shapes_are_named(updates: Tensor, params: Tensor, clients: Tensor | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Cohort.of(updates, params, LAYOUT, clients)
