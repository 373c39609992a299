"""The updates that a server received in one round, and what it knows about them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops import compute_dtype, upload
from .layout import Layout
from .trusted_data import MissingTrustedData, TrustedData


class TooFewClients(RuntimeError):
    """A rule has fewer clients than it needs."""


@dataclass(frozen=True)
class Cohort:
    """The updates of `n` clients to a model of `d` coordinates. `Cohort.of` makes one and checks it.

    Args:
        updates: Row i is client i's parameters minus `params`.
        params: The global model that every client started from.
        layout: Where the model's tensors are in a row.
        clients: Identities that last across rounds.
        weights: How much each row counts. Equal by default: a client's claim about its sample count is not evidence.
            Median and trimmed mean count rows, not weights.
        seed: For rules that draw at random: the same seed draws the same.
        trusted_data: Clean data at the server, if there is any.
    """

    updates: Float[Tensor, "n d"]
    params: Float[Tensor, " d"]
    layout: Layout
    clients: Int[Tensor, " n"]
    weights: Float[Tensor, " n"]
    seed: int = 0
    trusted_data: TrustedData | None = None

    @classmethod
    def of(
        cls,
        updates: Tensor,
        params: Tensor,
        layout: Layout,
        clients: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        seed: int = 0,
        trusted_data: TrustedData | None = None,
    ) -> Cohort:
        """A cohort of updates that were not judged yet. Shapes and values are checked here.

        Args:
            updates: One row per client: its parameters minus `params`.
            params: The global model that every client started from.
            layout: Where the model's tensors are in a row.
            clients: Identities that last across rounds, for rules that remember clients. None: 0, 1, 2, …
            weights: How much each row counts, at least 0. None: all the same.
            seed: For rules that draw at random. Give every round its own.
            trusted_data: Clean data at the server, for rules that need it.
        """
        if updates.ndim != 2 or updates.shape[1] != layout.size:
            raise ValueError(f"updates need shape (n, {layout.size}), got {tuple(updates.shape)}")
        if tuple(params.shape) != (layout.size,):
            raise ValueError(f"params need shape ({layout.size},), got {tuple(params.shape)}")
        if params.device != updates.device:
            raise ValueError(f"params must be on {updates.device} as the updates are, got {params.device}")
        clients = torch.arange(len(updates)) if clients is None else clients
        if tuple(clients.shape) != (len(updates),):
            raise ValueError(f"clients need shape ({len(updates)},), got {tuple(clients.shape)}")
        if clients.is_floating_point() or len(set(clients.tolist())) != len(clients):
            raise ValueError(f"clients must be distinct whole numbers, got {clients.tolist()}")
        weights = torch.ones(len(updates)) if weights is None else weights
        weights = _check_weights(weights, updates)
        return cls(updates, params, layout, upload(clients, updates.device), weights, seed, trusted_data)

    def __len__(self) -> int:
        return len(self.updates)

    @property
    def trusted(self) -> TrustedData:
        """The server's data, or an error that asks for it."""
        if self.trusted_data is None:
            raise MissingTrustedData(
                "this defense needs clean data at the server: pass trusted_data=..., "
                "or in an experiment data.trusted = 100"
            )
        return self.trusted_data

    def layer(self, name: str | None = None) -> tuple[Float[Tensor, "n k"], Float[Tensor, " k"]]:
        """The updates and the global parameters of one named tensor (default: the head), as views."""
        where = self.layout.slices[self.layout.find_layer(name)]
        return self.updates[:, where], self.params[where]

    def trainable(self) -> Float[Tensor, "n t"]:
        """The updates without buffers, as a view: what every distance, norm and cosine is computed from."""
        return self.updates[:, : self.layout.n_trainable]

    def buffers(self) -> Float[Tensor, "n b"]:
        """The updates of what is not trained, as a view."""
        return self.updates[:, self.layout.n_trainable :]

    def only(self, rows: Bool[Tensor, " n"]) -> Cohort:
        """The cohort without the rows that are False."""
        kept = rows.nonzero().flatten()  # once: indexing by truth values waits for a GPU each time
        if len(kept) == len(rows):
            return self  # the common case, without a copy of everything
        kept = upload(kept, self.updates.device)
        return replace(self, updates=self.updates[kept], clients=self.clients[kept], weights=self.weights[kept])


def _check_weights(weights: Tensor, updates: Tensor) -> Float[Tensor, " n"]:
    if tuple(weights.shape) != (len(updates),):
        raise ValueError(f"weights need shape ({len(updates)},), got {tuple(weights.shape)}")
    weights = weights.to(compute_dtype(updates.dtype))  # a weight in half precision is off by 0.1 %
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ValueError(f"weights must be finite and at least 0, got {weights.tolist()}")
    if len(weights) > 0 and not bool((weights > 0).any()):
        raise ValueError("weights must not all be 0")
    return upload(weights, updates.device)  # after the checks: those would wait for a GPU
