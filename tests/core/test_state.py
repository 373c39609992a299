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
def test_slow_twin(rounds: list[dict[int, int]], strangers: list[int]) -> None:
    """A plain dict, with Flower's 64-bit node ids."""
    table, twin = ClientTable.empty(), dict[int, int]()
    for written in rounds:
        ids, rows = torch.tensor(list(written)), torch.tensor(list(written.values())).float()[:, None]
        table, before = table.with_rows(ids, rows), table
        assert len(before.clients) == len(twin)  # copied on write
        twin.update(written)
    asked = [*twin, *strangers]
    found = table.lookup(torch.tensor(asked), default=torch.full((len(asked), 1), -1.0))
    assert found[:, 0].tolist() == [twin.get(client, -1) for client in asked]


def written(table: ClientTable, *clients: int, value: float = 0.0, capacity: int | None = None) -> ClientTable:
    return table.with_rows(torch.tensor(clients), torch.full((len(clients), 1), value), capacity)


def test_writes_are_counted() -> None:
    # Clients 5 and 2 in the first write, 2 and 9 in the second, 5 in the third; sorted by client: 2, 5, 9.
    table = written(written(written(ClientTable.empty(), 5, 2), 2, 9), 5)
    assert table.clients.tolist() == [2, 5, 9]
    assert table.last_write.tolist() == [1, 2, 1]
    assert written(ClientTable.empty(), 7).last_write.tolist() == [0]


def test_those_not_written_for_longest_are_forgotten() -> None:
    table = written(written(ClientTable.empty(), 1, 2, value=1.0, capacity=4), 3, value=2.0, capacity=4)
    table = written(table, 1, value=3.0, capacity=4)  # 2 is now the oldest, then 3
    table = written(table, 8, 9, value=4.0, capacity=4)
    assert table.clients.tolist() == [1, 3, 8, 9]
    assert table.rows[:, 0].tolist() == [3, 2, 4, 4]
    stranger = table.lookup(torch.tensor([2]), default=torch.tensor([[-1.0]]))
    assert stranger.tolist() == [[-1]]
    table = written(table, 7, capacity=1)
    assert table.clients.tolist() == [7]


def test_a_write_larger_than_the_table() -> None:
    table = written(ClientTable.empty(), 4, 3, 2, 1, capacity=2)
    assert len(table.clients) == 2
    assert set(table.clients.tolist()) <= {1, 2, 3, 4}
    table = written(table, 30, 10, 20, capacity=2)
    assert len(table.clients) == 2
    assert set(table.clients.tolist()) <= {10, 20, 30}


def test_what_is_forgotten_does_not_depend_on_the_order_of_a_write() -> None:
    one = written(ClientTable.empty(), 1, 2, 3, 4, 5, capacity=3)
    other = written(ClientTable.empty(), 4, 2, 5, 1, 3, capacity=3)
    assert torch.equal(one.clients, other.clients)


@given(writes, st.integers(1, 8))
def test_slow_twin_with_a_capacity(rounds: list[dict[int, int]], capacity: int) -> None:
    """A dict that forgets; of those written together, it does not say which go first."""
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
    """Whoever invents identities fills the table, and no more than it."""
    table = ClientTable.empty()
    for start in range(0, 10_000, 250):
        table = written(table, *range(start, start + 250), value=float(start), capacity=1000)
        assert len(table.clients) <= 1000
    assert table.clients.tolist() == list(range(9000, 10_000))
    assert float(table.rows[-1]) == 9750


def test_when_rows_were_written_survives_a_file() -> None:
    table = written(written(ClientTable.empty(), 1, 2, 3), 1)
    found = restored(table, ClientTable.empty())
    assert isinstance(found, ClientTable)
    assert written(found, 4, capacity=2).clients.tolist() == [1, 4]


@dataclass(frozen=True)
class Pair:
    table: ClientTable
    norm: float


def restored(state: object, like: object) -> object:
    packed, tensors = pack(state)
    return unpack(json.loads(json.dumps(packed)), tensors, like)


def test_states_survive() -> None:
    table = ClientTable.empty().with_rows(torch.tensor([5, 2]), torch.tensor([[1.0], [2.0]]))
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
    table = ClientTable.empty().with_rows(torch.tensor([5]), torch.tensor([[1.0]]))
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
