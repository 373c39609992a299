"""Neurotoxin: a backdoor in the coordinates that honest training leaves alone, so that it lasts longer.

Zhang, Panda, Song, Yang, Mahoney, Mittal, Ramchandran, Gonzalez. Neurotoxin: Durable Backdoors in Federated Learning.
ICML 2022. https://arxiv.org/abs/2206.10341

The authors' code takes the gradient of the global model on the data of benign clients. Here the last global update
stands for it, as in other public code; that this is the paper's own idea was not confirmed. The mask is over all
tensors jointly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientHook, Cohort, Layout, State
from ..ops import fraction_of
from .attack import TrainingPlan
from .backdoor import Backdoor
from .constrain_and_scale import StayInBall, project_rows


@dataclass(frozen=True)
class NeurotoxinState:
    """The global model of the last round with the attack; empty before the first."""

    params: Float[Tensor, " d"]


@dataclass(frozen=True)
class Neurotoxin(Backdoor):
    """The backdoor, trained only in the share `keep` of the weights that the last global update changed least.

    The other weights of the update are 0. In the first round of the attack no global update is known, and all weights
    are trained. After every step the weights are projected to within `radius` of the global model. In a real
    federation, where only the trained update can be changed, mask and projection are applied once.

    Args:
        keep: The share of the weights that are trained. The authors' commands use 0.95 to 0.99.
        radius: The largest norm of the update before scaling. None: no limit. The authors' commands use 0.2.
    """

    keep: float = 0.95
    radius: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep <= 1:
            raise ValueError(f"Neurotoxin.keep must be in (0, 1], got {self.keep}")
        if self.radius is not None and not self.radius > 0:
            raise ValueError(f"Neurotoxin.radius must be positive, got {self.radius}")

    def init(self) -> NeurotoxinState:
        return NeurotoxinState(torch.empty(0))

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        hooks: tuple[ClientHook, ...] = (Masked(params, self._mask(params, layout, state)),)
        if self.radius is not None:
            hooks += (StayInBall(params, self.radius),)
        return TrainingPlan(self.steps, hooks=hooks)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        mask = self._mask(cohort.params, cohort.layout, state)
        cohort = replace(cohort, updates=cohort.updates * mask)
        if self.radius is not None:
            cohort = project_rows(cohort, self.radius)
        forged, _ = super().forge(cohort, malicious, state)
        return forged, NeurotoxinState(cohort.params)

    def _mask(self, params: Float[Tensor, " d"], layout: Layout, state: NeurotoxinState) -> Bool[Tensor, " d"]:
        """True where the update is kept. Buffers are always kept."""
        mask = torch.ones_like(params, dtype=torch.bool)
        if state.params.numel():
            t = layout.n_trainable
            mask[:t] = select_smallest((params - state.params)[:t].abs(), self.keep)
        return mask


def select_smallest(magnitudes: Float[Tensor, " t"], share: float) -> Bool[Tensor, " t"]:
    """The given share of the coordinates, those with the smallest magnitudes, and all that tie with the last."""
    count = max(1, fraction_of(share, len(magnitudes)))
    return magnitudes <= magnitudes.sort().values[count - 1]


@dataclass(frozen=True, eq=False)
class Masked(ClientHook):
    """After every step, undo what it changed outside of the mask."""

    start: Float[Tensor, " d"]
    mask: Bool[Tensor, " d"]

    def step(
        self,
        params: Float[Tensor, " d"],
        gradient: Float[Tensor, " d"],
        previous: Float[Tensor, " d"] | None,
        layout: Layout,
        lr: float,
    ) -> Float[Tensor, " d"]:
        return torch.where(self.mask, params, self.start)
