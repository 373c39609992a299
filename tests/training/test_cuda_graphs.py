"""How many recordings are made: that needs no GPU. What they compute is shown in test_cuda.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cosdefense.training import cuda_graphs

MEMORY = 1000


class Tape(cuda_graphs.Lane):
    """Takes memory, as a lane would."""

    def __init__(self, *_: object) -> None:  # no stream, no graph
        self.memory = MEMORY


def train(params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    raise AssertionError("nothing is trained here")


def recorded(monkeypatch: pytest.MonkeyPatch, free: int, clients: list[int]) -> list[int]:
    """The number of lanes after rounds of so many clients each."""
    lanes: list[cuda_graphs.Lane] = []
    monkeypatch.setattr(cuda_graphs, "Lane", Tape)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: MEMORY * len(lanes))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    counts = []
    for n in clients:
        cuda_graphs._record(lanes, n, train, torch.zeros(1))
        counts.append(len(lanes))
    return counts


def test_as_many_lanes_as_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_graphs.MAX_LANES == 4
    assert recorded(monkeypatch, 10**8, [1, 2, 7, 3, 9]) == [1, 2, 4, 4, 4]


def test_where_memory_is_scarce_one_lane_is_enough_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plentiful is room for sixteen lanes."""
    assert recorded(monkeypatch, 16 * MEMORY - 1, [7, 7, 7, 7]) == [1, 1, 1, 1]
    assert recorded(monkeypatch, 16 * MEMORY, [7]) == [4]
