"""What honest clients send where a defense's hooks change it, and what they remember for the next round."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import ClientHook, ClientTable, Layout

Memories = tuple[ClientTable, ...]  # one table per hook of the defense


def empty_memories(hooks: tuple[ClientHook, ...]) -> Memories:
    """What clients remember before the first round."""
    return tuple(ClientTable.empty() for _ in hooks)


def send_updates(
    updates: Float[Tensor, "n d"],
    clients: Int[Tensor, " n"],
    honest: Bool[Tensor, " n"],
    hooks: tuple[ClientHook, ...],
    memories: Memories,
    layout: Layout,
) -> Memories:
    """Replace the updates of honest clients by what they send, in place; and return what they remember."""
    if not any(hook.keeps_memory for hook in hooks):
        return memories
    rows = honest.nonzero().flatten().tolist()
    after = list(memories)
    for i, hook in enumerate(hooks):
        if hook.keeps_memory and rows:
            after[i] = _send(updates, clients, rows, hook, memories[i], layout)
    return tuple(after)


def _send(
    updates: Tensor, clients: Tensor, rows: list[int], hook: ClientHook, table: ClientTable, layout: Layout
) -> ClientTable:
    place = {client: i for i, client in enumerate(table.clients.tolist())}
    remembered = list[Tensor]()
    for row, client in zip(rows, clients[rows].tolist(), strict=True):
        before = table.rows[place[client]] if client in place else None
        updates[row], memory = hook.send(updates[row], before, layout)
        remembered.append(memory)
    return table.with_rows(clients[rows], torch.stack(remembered))
