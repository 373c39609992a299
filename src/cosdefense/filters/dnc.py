"""DnC: drop the updates that stand out most along the direction in which the round varies most.

Shejwalkar, Houmansadr. Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning. NDSS 2021. https://doi.org/10.14722/ndss.2021.24498

No code by the authors was found. The number of coordinates is that of several public implementations; that the authors
use one iteration and drop exactly f updates could not be confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, Need, State, generator
from ..ops import fraction_of, keep_lowest, round_scores
from .krum import check_contamination

EQUAL = 1e-9  # eigenvalues that differ by less, relatively, span one space
ROUNDING = 1e-28  # the square of the rounding of a mean
ROUNDING_OF_SCORES = 1e-12  # relative to the largest


@dataclass(frozen=True)
class DnC(Filter):
    """Score every update by ⟨u − ū, v⟩², v the first principal direction, and drop the floor(filter · f) highest.

    Here f = floor(contamination · n). The scores come from random coordinates, drawn by the seed. Each iteration draws
    others, and an update must be kept in all of them. The score is the largest. Updates that tie with the last one kept
    share its weight. It drops as many without an attack, and honest clients with a rare class may span the first
    direction. Malicious updates in two opposite groups cancel in v.

    Args:
        contamination: The expected share of malicious clients.
        iterations: How often coordinates are drawn.
        coordinates: How many are drawn at a time.
        filter: How many updates are dropped, in expected malicious clients.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTACKER_COUNT})

    contamination: float = 0.3
    iterations: int = 1
    coordinates: int = 10_000
    filter: float = 1.0

    def __post_init__(self) -> None:
        check_contamination(self, self.contamination)
        for name in ("iterations", "coordinates"):
            if getattr(self, name) < 1:
                raise ValueError(f"DnC.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.filter < math.inf:
            raise ValueError(f"DnC.filter must be at least 0 and finite, got {self.filter}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        n = len(cohort)
        keep = max(1, n - math.floor(self.filter * fraction_of(self.contamination, n) + 1e-9))
        scores = torch.stack([variance_shares(sample) for sample in self._draw_samples(cohort)])
        weights = keep_lowest(scores, keep).amin(dim=0)
        return Judgment(scores.amax(dim=0), weights.to(cohort.weights.dtype)), state

    def _draw_samples(self, cohort: Cohort) -> list[Float[Tensor, "n r"]]:
        rows, rng = cohort.trainable(), generator(cohort.seed, "dnc")
        if self.coordinates >= rows.shape[1]:
            return [rows]
        drawn = [torch.randperm(rows.shape[1], generator=rng)[: self.coordinates] for _ in range(self.iterations)]
        return [rows[:, columns.to(rows.device)] for columns in drawn]


def variance_shares(rows: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
    """⟨row − mean, v⟩² for the first principal direction v; over all of them where several are equally long."""
    wide = rows.double()
    scale = wide.abs().amax()
    wide = wide / torch.where(scale > 0, scale, 1)  # first, so that no square overflows
    centered = wide - wide.mean(dim=0)
    values, vectors = torch.linalg.eigh((centered @ centered.T).cpu())  # n × n is small
    values = torch.where(values > rows.shape[1] * ROUNDING, values, 0)  # where all rows are the same
    first = values >= (1 - EQUAL) * values[-1]
    squares = (vectors[:, first].square() * values[first]).sum(dim=1)
    # Beside one huge row all others have the same score, up to rounding that must not choose among them.
    squares = round_scores(squares, ROUNDING_OF_SCORES).to(rows.device)
    return (squares * scale * scale).clamp_max(torch.finfo(torch.float64).max)
