"""ClientTable keeps rows by identity; states survive a file."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import ClientTable
from cosdefense.memory import pack, unpack

writes = st.lists(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(0, 99), min_size=1, max_size=5), max_size=6
)


@given(writes, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_slow_twin(rounds: list[dict[int, int]], strangers: list[int]) -> None:
    """A plain dict, with Flower's 64-bit node ids."""
    table, twin = ClientTable.empty(), dict[int, int]()
    for written in rounds:
        ids, rows = torch.tensor(list(written)), torch.tensor(list(written.values())).float()[:, None]
        table, before = table.updated(ids, rows), table
        assert len(before.clients) == len(twin)  # copied on write
        twin.update(written)
    asked = [*twin, *strangers]
    found = table.lookup(torch.tensor(asked), default=torch.full((len(asked), 1), -1.0))
    assert found[:, 0].tolist() == [twin.get(client, -1) for client in asked]


@dataclass(frozen=True)
class Pair:
    table: ClientTable
    norm: float


def restored(state: object, like: object) -> object:
    packed, tensors = pack(state)
    return unpack(json.loads(json.dumps(packed)), tensors, like)


def test_states_survive() -> None:
    table = ClientTable.empty().updated(torch.tensor([5, 2]), torch.tensor([[1.0], [2.0]]))
    found = restored(
        (None, Pair(table, 0.1), {3: torch.ones(2), "rounds": 4}), (None, Pair(ClientTable.empty(), 0.0), {})
    )
    assert isinstance(found, tuple)
    assert found[0] is None
    assert isinstance(found[1], Pair)
    assert found[1].norm == 0.1
    assert found[1].table.clients.tolist() == [2, 5]
    assert torch.equal(found[2][3], torch.ones(2))
    assert found[2]["rounds"] == 4


def test_dataclasses_inside_dicts_survive() -> None:
    table = ClientTable.empty().updated(torch.tensor([5]), torch.tensor([[1.0]]))
    found = restored({"table": table, 7: 3}, {"table": ClientTable.empty()})
    assert isinstance(found, dict)
    assert isinstance(found["table"], ClientTable)
    assert found[7] == 3


def test_a_file_cannot_name_a_class() -> None:
    with pytest.raises(TypeError, match="returns one of its kind"):
        restored(Pair(ClientTable.empty(), 0.0), None)


def test_strange_states_are_refused() -> None:
    with pytest.raises(TypeError, match="got function"):
        pack((lambda: None,))
    with pytest.raises(TypeError, match="got list"):
        pack([1])  # it would come back as a tuple
    with pytest.raises(TypeError, match="keyed by texts or numbers, got tuple"):
        pack({(1, 2): 3})


def test_tensors_are_kept_apart() -> None:
    one: Tensor = torch.ones(1)
    packed, tensors = pack((one, {"again": one}))
    assert len(tensors) == 2
    assert packed == [{"tensor": "0"}, {"items": [["again", {"tensor": "1"}]]}]
