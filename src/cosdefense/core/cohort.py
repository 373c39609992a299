"""What the server holds in one round: the updates it received and all it knows about them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .layout import Layout
from .trusted_data import MissingTrustedData, TrustedData


class TooFewClients(RuntimeError):
    """A rule was left with fewer clients than its mathematics needs."""


@dataclass(frozen=True)
class Cohort:
    """`n` clients' updates to a model of `d` coordinates. No field says who is malicious."""

    updates: Float[Tensor, "n d"]  # row i: client i's parameters minus `params`
    params: Float[Tensor, " d"]  # the global model every client started from
    layout: Layout
    clients: Int[Tensor, " n"]  # identities that last across rounds
    weights: Float[Tensor, " n"]  # how much each row counts; equal unless the operator vouches for sample counts
    seed: int = 0  # for rules that draw at random: the same round always draws the same
    trusted_data: TrustedData | None = None

    @classmethod
    def of(
        cls,
        updates: Tensor,
        params: Tensor,
        layout: Layout,
        clients: Tensor | None = None,
        *,
        seed: int = 0,
        trusted_data: TrustedData | None = None,
    ) -> Cohort:
        """A cohort nobody has judged yet: equal weights. Wrong shapes are refused here, once."""
        if updates.ndim != 2 or updates.shape[1] != layout.size:
            raise ValueError(f"updates need shape (n, {layout.size}), got {tuple(updates.shape)}")
        if tuple(params.shape) != (layout.size,):
            raise ValueError(f"params need shape ({layout.size},), got {tuple(params.shape)}")
        if params.device != updates.device:
            raise ValueError(f"params must be on {updates.device} as the updates are, got {params.device}")
        clients = torch.arange(len(updates)) if clients is None else clients
        if tuple(clients.shape) != (len(updates),):
            raise ValueError(f"clients need shape ({len(updates)},), got {tuple(clients.shape)}")
        weights = updates.new_ones(len(updates))
        return cls(updates, params, layout, clients.to(updates.device), weights, seed, trusted_data)

    def __len__(self) -> int:
        return len(self.updates)

    @property
    def trusted(self) -> TrustedData:
        """The server's own data, or a clear refusal."""
        if self.trusted_data is None:
            raise MissingTrustedData(
                "this defense needs clean data of the server's own: pass trusted_data=..., "
                "or in an experiment data.trusted = 100"
            )
        return self.trusted_data

    def layer(self, name: str | None = None) -> tuple[Float[Tensor, "n k"], Float[Tensor, " k"]]:
        """The updates and the global parameters of one named tensor (default: the head), as views."""
        name = name or self.layout.head
        if name not in self.layout.trainable:  # buffers never vote
            raise ValueError(f"layer must be one of {sorted(self.layout.trainable)}, got {name!r}")
        where = self.layout.slices[name]
        return self.updates[:, where], self.params[where]

    def trainable(self) -> Float[Tensor, "n t"]:
        """The view every distance, norm and cosine uses: buffers never vote."""
        return self.updates[:, : self.layout.n_trainable]

    def only(self, rows: Bool[Tensor, " n"]) -> Cohort:
        """The cohort without the rows that are False."""
        if bool(rows.all()):
            return self  # the common case, without a copy of everything
        return replace(self, updates=self.updates[rows], clients=self.clients[rows], weights=self.weights[rows])
