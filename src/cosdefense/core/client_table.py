"""What a rule remembers about each client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ClientTable:
    """One row of numbers per client identity. Tables do not change: writing returns a new one.

    Args:
        clients: The identities, sorted.
        rows: The numbers of each client.
        last_write: When each row was last written, counted in writes.
    """

    clients: Int[Tensor, " m"]
    rows: Float[Tensor, "m k"]
    last_write: Int[Tensor, " m"]

    @classmethod
    def empty(cls) -> ClientTable:
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(nothing, torch.empty(0, 0), nothing)

    def lookup(self, clients: Int[Tensor, " n"], default: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The rows of these clients; row i of `default` for a client that is not in the table."""
        if len(self.clients) == 0:
            return default
        place = torch.searchsorted(self.clients, clients).clamp_max(len(self.clients) - 1)
        known = self.clients[place] == clients
        return torch.where(known[:, None], self.rows[place], default)

    def with_rows(
        self, clients: Int[Tensor, " n"], rows: Float[Tensor, "n k"], capacity: int | None = None
    ) -> ClientTable:
        """A table with these rows added or replaced. Beyond `capacity`, the rows that were written first are dropped.

        Where nodes are not authenticated an attacker can make up identities, and memory must not grow with them.
        """
        now = torch.full_like(clients, int(self.last_write.max()) + 1 if len(self.last_write) else 0)
        if len(self.clients) == 0:
            table = ClientTable(clients, rows, now)
        else:
            others = ~torch.isin(self.clients, clients)
            table = ClientTable(
                torch.cat([self.clients[others], clients]),
                torch.cat([self.rows[others], rows]),
                torch.cat([self.last_write[others], now]),
            )
        order = table.clients.argsort()
        if capacity is not None and len(order) > capacity:
            latest = table.last_write[order].argsort(descending=True, stable=True)[:capacity]
            order = order[latest.sort().values]
        return ClientTable(table.clients[order], table.rows[order], table.last_write[order])
