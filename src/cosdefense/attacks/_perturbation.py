"""The perturbed mean of Min-Max and Min-Sum: its distances to the known updates, and the largest allowed step.

The authors search for γ by halving steps until it changes by less than 1e-5. Here γ is computed directly: a squared
distance is a quadratic polynomial in γ.

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


class PerturbedMean:
    """The rows mean + γ · direction, and their squared distances to the known updates as polynomials in γ.

    Distances are taken over the trainable coordinates, in float64, after a division by `scale`.
    """

    def __init__(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], knowledge: Knowledge, direction: Direction
    ) -> None:
        known, t = cohort.only(known_rows(malicious, knowledge)), cohort.layout.n_trainable
        # In the order of identities: γ · direction may nearly cancel the mean, and then the order of sums matters.
        wide = known.updates[known.clients.argsort()].double()
        self.scale = float(wide.abs().max()) or 1.0  # first, so that no square overflows or underflows
        wide = wide / self.scale
        self.mean, self.direction = wide.mean(dim=0), _compute_direction(wide, direction, t)
        offsets = self.mean[:t] - wide[:, :t]
        self.distances_between_known = squared_distances(wide[:, :t])
        # ‖offset + γ · direction‖² = ‖offset‖² + 2 γ ⟨offset, direction⟩ + γ² ‖direction‖²
        self.constant = offsets.square().sum(dim=1)
        self.linear = offsets @ self.direction[:t]
        self.square = self.direction[:t].square().sum()

    def at(self, gamma: Tensor) -> Float[Tensor, " d"]:
        """mean + γ · direction, in the scale of the updates."""
        return (self.mean + gamma * self.direction) * self.scale


def _compute_direction(known: Float[Tensor, "m d"], direction: Direction, n_trainable: int) -> Float[Tensor, " d"]:
    """The authors' three: against the mean update, against its sign, against the standard deviation."""
    mean = known.mean(dim=0)
    if direction == "sign":
        return -mean.sign()
    if direction == "std":
        return -known.std(dim=0, correction=0)
    norm = row_norms(mean[None, :n_trainable])
    return -mean / torch.where(norm > 0, norm, 1)


def solve_gamma(constant: Tensor, linear: Tensor, square: Tensor, bound: Tensor) -> Tensor:
    """Solve for the largest γ ≥ 0 with constant + 2 γ linear + γ² square ≤ bound; 0 where there is none."""
    margin = (bound - constant).clamp_min(0)
    root = (linear.square() + square * margin).sqrt()
    # Two forms of one solution, chosen so that nearly equal numbers are never subtracted.
    if_positive = margin / torch.where(linear + root > 0, linear + root, torch.inf)
    if_negative = (root - linear) / square
    return torch.where(square > 0, torch.where(linear > 0, if_positive, if_negative), 0)
