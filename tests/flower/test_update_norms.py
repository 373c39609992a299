"""Norms of updates that are read in blocks, against the definition in float64."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from federations import Arrays, model, trained

from cosdefense.flower.arrays import NDArray
from cosdefense.flower.reasons import BadReply, Reason
from cosdefense.flower.sent_model import SentModel
from cosdefense.flower.update_norms import BLOCK, PIECE, measure_updates

NOT_TRAINED = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def define_norm(start: Arrays, reply: Arrays) -> float:
    differences = [reply[name].astype(np.longdouble) - start[name] for name in start if name not in NOT_TRAINED]
    return float(np.sqrt(sum((difference**2).sum() for difference in differences)))


def cast(arrays: Arrays, dtype: Any) -> dict[str, NDArray]:
    return {n: a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a for n, a in arrays.items()}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_norms_of_honest_updates(dtype: Any) -> None:
    start = cast(model(), dtype)
    replies = [cast(trained(start, node), dtype) for node in range(20)]
    norms = measure_updates(SentModel.of(start), replies)
    assert norms == pytest.approx([define_norm(start, reply) for reply in replies], rel=1e-6)


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, BLOCK, BLOCK + 1, 3 * BLOCK + PIECE + 7])
def test_tensors_of_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    start = {"weight": rng.normal(size=(size, 1)).astype(np.float32)}
    replies = [{"weight": rng.normal(size=(size, 1)).astype(np.float32)} for _ in range(3)]
    norms = measure_updates(SentModel.of(start), replies)
    assert norms == pytest.approx([define_norm(start, reply) for reply in replies], rel=1e-6)


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-12, 1e12, 1e21, 1e38])
def test_extreme_updates_to_a_model_of_zeros(factor: float) -> None:
    """Their squares over- or underflow in float32."""
    start = {name: np.zeros_like(array) for name, array in model().items()}
    reply = {n: a * np.float32(factor) if a.dtype == np.float32 else a for n, a in trained(start, 3, size=0.5).items()}
    (norm,) = measure_updates(SentModel.of(start), [reply])
    assert norm == pytest.approx(define_norm(start, reply), rel=1e-6)


def test_a_double_precision_norm_may_be_infinite() -> None:
    start = {"weight": np.zeros((4, 4))}
    norms = measure_updates(SentModel.of(start), [{"weight": np.full((4, 4), x)} for x in (1e-200, 1e200, 1.7e308)])
    assert norms == pytest.approx([4e-200, 4e200, math.inf])


@pytest.mark.parametrize("name", ["body.weight", "head.bias", "norm.running_mean"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_replies_that_are_not_finite_do_not_count(name: str, value: float) -> None:
    start = model()
    replies = [trained(start, node) for node in range(20)]
    replies[11][name].flat[-1] = value
    norms = measure_updates(SentModel.of(start), replies)
    refused = norms.pop(11)
    assert isinstance(refused, BadReply)
    assert refused.reason == Reason.NOT_FINITE
    assert str(refused).startswith(name)
    assert all(isinstance(norm, float) for norm in norms)


@pytest.mark.parametrize("name", ["body.weight", "norm.running_mean"])
def test_a_difference_that_overflows_does_not_count(name: str) -> None:
    """Both numbers are finite."""
    start = model()
    start[name].flat[0] = 3e38
    reply = trained(start, 1)
    reply[name].flat[0] = -3e38
    (refused,) = measure_updates(SentModel.of(start), [reply])
    assert isinstance(refused, BadReply)


def test_updates_are_not_held_in_memory() -> None:
    start = {"weight": np.zeros((1024, 1024), np.float32)}
    replies = [{"weight": np.ones((1024, 1024), np.float32)} for _ in range(10)]
    sent = SentModel.of(start)
    measure_updates(sent, replies[:1])
    tracemalloc.start()
    assert measure_updates(sent, replies) == [1024.0] * 10
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < start["weight"].nbytes / 2
