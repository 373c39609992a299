"""Inputs for the contract: a small network, cohorts of all sizes and scales, clean data at a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from ..core import Cohort, Layout, TrustedData

DTYPES = (torch.float32, torch.float64)
SCALES = (1e-8, 1.0, 1e8)
SIZES = (1, 2, 3, 5, 10, 11, 23)
LARGE = 70
HALF_DTYPES, HALF_SIZES = (torch.bfloat16, torch.float16), (1, 3, 11)

# A small network with BatchNorm: weights, buffers, and a head.
LAYOUT = Layout(
    (
        ("features.weight", (4, 3)),
        ("head.weight", (3, 4)),
        ("head.bias", (3,)),
        ("norm.running_mean", (4,)),
        ("norm.running_var", (4,)),
    ),
    head="head.weight",
    n_trainable=27,
)


@dataclass(frozen=True)
class ExampleTrustedData(TrustedData):
    """Clean data for the small network: the server's, and a sample of every client's."""

    scale: float = 1.0  # of its updates, as those of the cohort

    def update(self, params: Tensor, seed: int) -> Tensor:
        return self.scale * _draw(seed, LAYOUT.size, params) - 0.01 * params

    def predict(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return _logits(params, _draw(7, 60, params).view(20, 3)), torch.arange(20, device=params.device) % 3

    def predict_random(self, params: Tensor, updates: Tensor, n: int, seed: int) -> Tensor:
        images = torch.rand(n, 3, generator=torch.Generator().manual_seed(seed)).to(params)
        return torch.stack([_logits(params + update, images) for update in (0, *updates)])

    def guides(self, clients: Tensor, params: Tensor, seed: int) -> Tensor:
        # Nearly the same for all, so that identical clients should get equal weights.
        lengths = self.scale * (1 + 1e-3 * (clients % 7).to(params.dtype))
        return lengths[:, None] * _draw(seed, LAYOUT.size, params)


def _logits(params: Tensor, images: Tensor) -> Tensor:
    tensors = LAYOUT.unflatten(params)
    hidden = (images @ tensors["features.weight"].T).relu()
    return hidden @ tensors["head.weight"].T + tensors["head.bias"]


def _draw(seed: int, size: int, like: Tensor) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=like.dtype).to(like.device)


def cohorts(device: str, *, half_precision: bool = False) -> Iterator[Cohort]:
    """Cohorts of all sizes, types and scales; always the same ones."""
    cases = [(n, dtype, scale) for n in SIZES for dtype in DTYPES for scale in SCALES]
    if half_precision:
        cases += [(n, dtype, 1.0) for n in HALF_SIZES for dtype in HALF_DTYPES]
    for number, (n, dtype, scale) in enumerate(cases):
        cohort = _draw_cohort(number, n, dtype, scale, device)
        yield cohort
        if scale == 1.0 and n >= 10:  # the same cohort with one client that sends huge numbers
            huge = min(1e30, torch.finfo(dtype).max)
            yield replace(
                cohort, updates=torch.where(cohort.clients[:, None] == cohort.clients[4], huge, cohort.updates)
            )


def large_cohort(device: str) -> Cohort:
    """A round of so many clients that coordinate-wise rules sort columns instead of comparing whole rows."""
    return _draw_cohort(0, LARGE, torch.float32, 1.0, device)


def _draw_cohort(seed: int, n: int, dtype: torch.dtype, scale: float, device: str) -> Cohort:
    rng = torch.Generator().manual_seed(seed)
    updates = scale * torch.randn(n, LAYOUT.size, generator=rng, dtype=dtype)
    params = torch.randn(LAYOUT.size, generator=rng, dtype=dtype)
    for where in LAYOUT.variances:  # a variance is positive, and so is one that an honest client reports
        params[where] = params[where].abs() + 1
        updates[:, where] = updates[:, where].abs()
    clients = torch.randperm(1000, generator=rng)[:n]
    trusted = ExampleTrustedData(scale)
    return Cohort.of(updates.to(device), params.to(device), LAYOUT, clients, seed=seed, trusted_data=trusted)


def masks(n: int, device: str) -> Iterator[Bool[Tensor, " n"]]:
    nobody = torch.zeros(n, dtype=torch.bool, device=device)
    some = nobody.clone()
    some[: n // 3] = True
    yield from (nobody, some, ~nobody)
