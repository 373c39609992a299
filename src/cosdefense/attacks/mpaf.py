"""MPAF: fake clients pull the global model towards a fixed bad model.

Cao, Gong. MPAF: Model Poisoning Attacks to Federated Learning based on Fake Clients. CVPR Workshops 2022.
https://arxiv.org/abs/2203.08669

The factor 1e6 and the randomly initialized base model are from memory of the paper. Two public implementations take the
federation's initial model as the base, with factors of 3 and 1e5. In the paper fake clients are added to the honest
ones; here they replace some of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from ._knowledge import check_choice
from .attack import Attack

Base = Literal["random", "first"]


@dataclass(frozen=True)
class MPAFState:
    """The bad model; empty before the first round of the attack."""

    base: Float[Tensor, " d"]


@dataclass(frozen=True)
class MPAF(Attack):
    """All malicious clients send scale · (base − w) in the weights, and zeros in the buffers.

    They need neither data nor the updates of others. They all agree, and honest clients do not, so that clipping
    followed by a mean does not stop them.

    Args:
        scale: The factor. Values beyond the range of the updates' type are clipped to it.
        base: "random": every tensor of the base is drawn from a normal distribution with the mean and the standard
            deviation of that tensor in the first round of the attack. "first": the global model of that round, which
            is a bad model only if the attack starts with the training.
    """

    needs_local_training: ClassVar[bool] = False
    scale: float = 1e6
    base: Base = "random"

    def __post_init__(self) -> None:
        check_choice("base", self.base, Base)
        if not 0 < self.scale < math.inf:
            raise ValueError(f"MPAF.scale must be positive and finite, got {self.scale}")

    def init(self) -> MPAFState:
        return MPAFState(torch.empty(0))

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not state.base.numel():
            state = MPAFState(_draw_model(cohort) if self.base == "random" else cohort.params)
        largest = torch.finfo(cohort.updates.dtype).max
        row = (self.scale * (state.base.double() - cohort.params.double())).clamp(-largest, largest)
        row[cohort.layout.n_trainable :] = 0
        return row.to(cohort.updates.dtype).expand_as(cohort.updates), state


def _draw_model(cohort: Cohort) -> Float[Tensor, " d"]:
    """A random model whose tensors have the mean and the standard deviation of the global model's.

    It is drawn on the device of the model: a CPU and a GPU draw different numbers.
    """
    model, device = cohort.params.clone(), cohort.params.device
    rng = generator(cohort.seed, "mpaf", device=device)
    for name in cohort.layout.trainable:
        where = cohort.layout.slices[name]
        values = cohort.params[where].double()
        drawn = torch.randn(len(values), generator=rng, dtype=torch.float64, device=device)
        model[where] = (values.mean() + values.std(correction=0) * drawn).to(model.dtype)
    return model
