"""What a rule remembers about each client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class ClientTable:
    """One row of numbers per client identity. Writing returns a new table."""

    clients: Int[Tensor, " m"]  # sorted
    rows: Float[Tensor, "m k"]
    written: Int[Tensor, " m"]  # when each row was last written, counted in writes

    @classmethod
    def empty(cls) -> ClientTable:
        nothing = torch.empty(0, dtype=torch.int64)
        return cls(nothing, torch.empty(0, 0), nothing)

    def lookup(self, clients: Int[Tensor, " n"], default: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The clients' rows; row i of `default` for a client never seen."""
        if len(self.clients) == 0:
            return default
        place = torch.searchsorted(self.clients, clients).clamp_max(len(self.clients) - 1)
        known = self.clients[place] == clients
        return torch.where(known[:, None], self.rows[place], default)

    def updated(
        self, clients: Int[Tensor, " n"], rows: Float[Tensor, "n k"], capacity: int | None = None
    ) -> ClientTable:
        """The table with these clients' rows written. Beyond `capacity`, those not written for longest are forgotten.

        Identities cost an attacker nothing where nodes are not authenticated; memory must not grow with them.
        """
        now = torch.full_like(clients, int(self.written.max()) + 1 if len(self.written) else 0)
        if len(self.clients) == 0:
            table = ClientTable(clients, rows, now)
        else:
            others = ~torch.isin(self.clients, clients)
            table = ClientTable(
                torch.cat([self.clients[others], clients]),
                torch.cat([self.rows[others], rows]),
                torch.cat([self.written[others], now]),
            )
        order = table.clients.argsort()
        if capacity is not None and len(order) > capacity:
            latest = table.written[order].argsort(descending=True, stable=True)[:capacity]
            order = order[latest.sort().values]
        return ClientTable(table.clients[order], table.rows[order], table.written[order])
