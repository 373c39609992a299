"""Stand-ins for tests of single parts: a model of two weights and one statistic, a server that knows the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cosdefense import Cohort, Filter, Layout, TrustedData
from cosdefense.core import Part, State, pack, unpack

LAYOUT = Layout((("w", (2,)), ("norm.running_mean", (1,))), "w", 2)


def cohort_of(
    rows: Any,
    clients: list[int] | None = None,
    *,
    trusted_data: TrustedData | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Cohort:
    """Rows of two weights get a statistic each, a different one, which must not matter to any judgment."""
    updates = torch.as_tensor(rows, dtype=dtype)
    if updates.shape[1] == 2:
        updates = torch.cat([updates, torch.arange(len(updates), dtype=dtype)[:, None] - 3], dim=1)
    names = None if clients is None else torch.tensor(clients)
    return Cohort.of(updates, torch.zeros(3, dtype=dtype), LAYOUT, names, seed=seed, trusted_data=trusted_data)


def weights_only(rows: Any) -> Cohort:
    """Rows of any number of weights, and nothing else in the model."""
    updates = torch.as_tensor(rows, dtype=torch.float64)
    d = updates.shape[1]
    return Cohort.of(updates, torch.zeros(d, dtype=torch.float64), Layout((("w", (d,)),), "w", d))


@dataclass(frozen=True)
class Server(TrustedData):
    """Its update is a function of the model's two weights; its statistic is always 9."""

    own: Callable[[float, float], tuple[float, float]]
    seeds: list[int] = field(default_factory=list)  # of all questions so far

    def update(self, params: Tensor, seed: int) -> Tensor:
        self.seeds.append(seed)
        return params.new_tensor([*self.own(float(params[0]), float(params[1])), 9.0])


def always(*own: float) -> Server:
    """A server that trains to the same update whatever the model."""
    first, second = own
    return Server(lambda a, b: (first, second))


def weights_of(part: Filter, cohort: Cohort, state: State = None) -> list[float]:
    judgment, _ = part(cohort, state)
    return judgment.weights.to(torch.float64).tolist()


def save_and_load(state: State, part: Part) -> State:
    """The state after it was saved and loaded."""
    structure, tensors = pack(state)
    return unpack(json.loads(json.dumps(structure)), {name: t.clone() for name, t in tensors.items()}, part.init())


def slow_dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def slow_cosine(a: list[float], b: list[float]) -> float:
    lengths = math.hypot(*a) * math.hypot(*b)
    return slow_dot(a, b) / lengths if lengths else 0.0
