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
from cosdefense.core import pack, unpack

writes = st.lists(
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(0, 99), min_size=1, max_size=5), max_size=6
)


@given(writes, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_a_dict_gives_the_same_rows(rounds: list[dict[int, int]], strangers: list[int]) -> None:
    """A plain dict, with Flower's 64-bit node ids."""
    table, twin = ClientTable.empty(), dict[int, int]()
    for entries in rounds:
        ids, rows = torch.tensor(list(entries)), torch.tensor(list(entries.values())).float()[:, None]
        table, before = table.with_rows(ids, rows), table
        assert len(before.clients) == len(twin)  # copied on write
        twin.update(entries)
    asked = [*twin, *strangers]
    rows = table.lookup(torch.tensor(asked), default=torch.full((len(asked), 1), -1.0))
    assert rows[:, 0].tolist() == [twin.get(client, -1) for client in asked]


def write(table: ClientTable, *clients: int, value: float = 0.0, capacity: int | None = None) -> ClientTable:
    return table.with_rows(torch.tensor(clients), torch.full((len(clients), 1), value), capacity)


def test_writes_are_counted() -> None:
    # Clients 5 and 2 in the first write, 2 and 9 in the second, 5 in the third; sorted by client: 2, 5, 9.
    table = write(write(write(ClientTable.empty(), 5, 2), 2, 9), 5)
    assert table.clients.tolist() == [2, 5, 9]
    assert table.last_write.tolist() == [1, 2, 1]
    assert write(ClientTable.empty(), 7).last_write.tolist() == [0]


def test_the_oldest_rows_are_dropped() -> None:
    table = write(write(ClientTable.empty(), 1, 2, value=1.0, capacity=4), 3, value=2.0, capacity=4)
    table = write(table, 1, value=3.0, capacity=4)  # 2 is now the oldest, then 3
    table = write(table, 8, 9, value=4.0, capacity=4)
    assert table.clients.tolist() == [1, 3, 8, 9]
    assert table.rows[:, 0].tolist() == [3, 2, 4, 4]
    stranger = table.lookup(torch.tensor([2]), default=torch.tensor([[-1.0]]))
    assert stranger.tolist() == [[-1]]
    table = write(table, 7, capacity=1)
    assert table.clients.tolist() == [7]


def test_a_write_larger_than_the_table() -> None:
    table = write(ClientTable.empty(), 4, 3, 2, 1, capacity=2)
    assert len(table.clients) == 2
    assert set(table.clients.tolist()) <= {1, 2, 3, 4}
    table = write(table, 30, 10, 20, capacity=2)
    assert len(table.clients) == 2
    assert set(table.clients.tolist()) <= {10, 20, 30}


def test_what_is_forgotten_does_not_depend_on_the_order_of_a_write() -> None:
    one = write(ClientTable.empty(), 1, 2, 3, 4, 5, capacity=3)
    other = write(ClientTable.empty(), 4, 2, 5, 1, 3, capacity=3)
    assert torch.equal(one.clients, other.clients)


@given(writes, st.integers(1, 8))
def test_a_dict_that_forgets_gives_the_same_rows(rounds: list[dict[int, int]], capacity: int) -> None:
    """Of rows that were written together it does not say which are dropped first."""
    table, twin = ClientTable.empty(), dict[int, tuple[int, int]]()
    for number, entries in enumerate(rounds):
        ids, rows = torch.tensor(list(entries)), torch.tensor(list(entries.values())).float()[:, None]
        table = table.with_rows(ids, rows, capacity)
        twin |= {client: (number, value) for client, value in entries.items()}
        kept = table.clients.tolist()
        assert kept == sorted(kept)
        assert len(kept) == min(capacity, len(twin))
        for client, when, value in zip(kept, table.last_write.tolist(), table.rows[:, 0].tolist(), strict=True):
            assert (when, value) == twin[client]
        forgotten = [when for client, (when, _) in twin.items() if client not in kept]
        assert max(forgotten, default=-1) <= int(table.last_write.min())
        twin = {client: twin[client] for client in kept}


def test_ten_thousand_identities() -> None:
    """An attacker that makes up identities fills the table, but cannot make it larger."""
    table = ClientTable.empty()
    for start in range(0, 10_000, 250):
        table = write(table, *range(start, start + 250), value=float(start), capacity=1000)
        assert len(table.clients) <= 1000
    assert table.clients.tolist() == list(range(9000, 10_000))
    assert float(table.rows[-1]) == 9750


def test_when_rows_were_written_survives_a_file() -> None:
    table = write(write(ClientTable.empty(), 1, 2, 3), 1)
    loaded = save_and_load(table, ClientTable.empty())
    assert isinstance(loaded, ClientTable)
    assert write(loaded, 4, capacity=2).clients.tolist() == [1, 4]


@dataclass(frozen=True)
class Pair:
    table: ClientTable
    norm: float


def save_and_load(state: object, like: object) -> object:
    packed, tensors = pack(state)
    return unpack(json.loads(json.dumps(packed)), tensors, like)


def test_states_survive() -> None:
    table = ClientTable.empty().with_rows(torch.tensor([5, 2]), torch.tensor([[1.0], [2.0]]))
    loaded = save_and_load(
        (None, Pair(table, 0.1), {3: torch.ones(2), "rounds": 4}), (None, Pair(ClientTable.empty(), 0.0), {})
    )
    assert isinstance(loaded, tuple)
    assert loaded[0] is None
    assert isinstance(loaded[1], Pair)
    assert loaded[1].norm == 0.1
    assert loaded[1].table.clients.tolist() == [2, 5]
    assert torch.equal(loaded[2][3], torch.ones(2))
    assert loaded[2]["rounds"] == 4


def test_dataclasses_inside_dicts_survive() -> None:
    table = ClientTable.empty().with_rows(torch.tensor([5]), torch.tensor([[1.0]]))
    loaded = save_and_load({"table": table, 7: 3}, {"table": ClientTable.empty()})
    assert isinstance(loaded, dict)
    assert isinstance(loaded["table"], ClientTable)
    assert loaded[7] == 3


def test_a_file_cannot_name_a_class() -> None:
    with pytest.raises(TypeError, match="returns one of its kind"):
        save_and_load(Pair(ClientTable.empty(), 0.0), None)


def test_strange_states_are_refused() -> None:
    with pytest.raises(TypeError, match="got function"):
        pack((lambda: None,))
    with pytest.raises(TypeError, match="got list"):
        pack([1])  # it would come back as a tuple
    with pytest.raises(TypeError, match="keyed by strings or whole numbers, got tuple"):
        pack({(1, 2): 3})


def test_tensors_are_kept_apart() -> None:
    one: Tensor = torch.ones(1)
    packed, tensors = pack((one, {"again": one}))
    assert len(tensors) == 2
    assert packed == [{"tensor": "0"}, {"items": [["again", {"tensor": "1"}]]}]
