"""How far attackers can go from the mean in one direction and still be no farther from everybody than honest clients.

The two attacks that ask this differ in what they add up. Where the authors halve steps until γ changes by less than
1e-5, the answer is written down here: distances squared are parabolas in γ.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort
from ..ops import row_norms, squared_distances
from ._knowledge import Knowledge, known_rows

Direction = Literal["unit", "sign", "std"]


def perturbation(known: Float[Tensor, "m d"], direction: Direction, n_trainable: int) -> Float[Tensor, " d"]:
    """The authors' three: against the mean update, against its sign, against the coordinates' deviations."""
    mean = known.mean(dim=0)
    if direction == "sign":
        return -mean.sign()
    if direction == "std":
        return -known.std(dim=0, correction=0)
    length = row_norms(mean[None, :n_trainable])
    return -mean / torch.where(length > 0, length, 1)


class Room:
    """Where mean + γ · direction stands to the rows the attackers know: what the weights say, in float64."""

    def __init__(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], knowledge: Knowledge, direction: Direction
    ) -> None:
        known, t = cohort.only(known_rows(malicious, knowledge)), cohort.layout.n_trainable
        wide = known.updates[known.clients.argsort()].double()  # one order: a step may nearly cancel the mean
        self.scale = float(wide.abs().max()) or 1.0  # first, so that no square over- or underflows
        wide = wide / self.scale
        self.mean, self.direction = wide.mean(dim=0), perturbation(wide, direction, t)
        offsets = self.mean[:t] - wide[:, :t]
        self.between = squared_distances(wide[:, :t])
        # ‖offset + γ · direction‖² = ‖offset‖² + 2 γ ⟨offset, direction⟩ + γ² ‖direction‖²
        self.constant = offsets.square().sum(dim=1)
        self.linear = offsets @ self.direction[:t]
        self.square = self.direction[:t].square().sum()

    def at(self, gamma: Tensor) -> Float[Tensor, " d"]:
        """The row itself, in the scale of the rows."""
        return (self.mean + gamma * self.direction) * self.scale


def largest_step(constant: Tensor, linear: Tensor, square: Tensor, bound: Tensor) -> Tensor:
    """The largest γ ≥ 0 with constant + 2 γ linear + γ² square ≤ bound; 0 where there is none."""
    room = (bound - constant).clamp_min(0)
    root = (linear.square() + square * room).sqrt()
    # Two forms of one solution: neither subtracts what is nearly equal.
    forwards, backwards = room / torch.where(linear + root > 0, linear + root, torch.inf), (root - linear) / square
    return torch.where(square > 0, torch.where(linear > 0, forwards, backwards), 0)
