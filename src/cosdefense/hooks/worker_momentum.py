"""Worker momentum: clients send a running average of their updates, so that their noise averages out over rounds.

Karimireddy, He, Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021.
https://arxiv.org/abs/2012.10333

Made for centered clipping, and a help for every rule that looks for updates far from the others: honest updates come
closer to each other, and an attacker that hides in their noise has less room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import ClientHook, Layout


@dataclass(frozen=True)
class WorkerMomentum(ClientHook):
    """m ← momentum · m + (1 − momentum) · u, and the client sends m instead of its update u; in its first round m = u.

    Buffers are sent as they are. The paper expects every client in every round: a client that is sampled rarely sends
    a mean of updates of old models. The authors' code leaves the factor 1 − momentum out. Updates are then up to
    1 / (1 − momentum) times as long, and so is the radius that fits them.

    Args:
        momentum: How much of the average is kept from round to round. The authors run 0.9 and 0.99.
    """

    keeps_memory: ClassVar[bool] = True

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"WorkerMomentum.momentum must be in [0, 1), got {self.momentum}")

    def send(
        self, update: Float[Tensor, " d"], memory: Float[Tensor, " d"] | None, layout: Layout
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        if memory is None:
            return update, update.clone()
        average = self.momentum * memory + (1 - self.momentum) * update
        sent = torch.cat([average[: layout.n_trainable], update[layout.n_trainable :]])
        return sent, sent.clone()
