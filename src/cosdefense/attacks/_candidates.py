"""The forged updates among which the adaptive attack searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort
from ..ops import row_norms
from ._geometry import normalize, normalize_rows, remove_projection

DirectionName = Literal["reversed", "orthogonal", "sign", "deviation", "last_layer", "positive_cosine"]
BaseName = Literal["mean", "own", "copied"]


@dataclass(frozen=True)
class Candidate:
    """A forged update: base_weight · base + magnitude · direction, where the direction has the norm of the known mean.

    Args:
        direction: The direction that does the damage, see `CandidateBuilder`.
        magnitude: The length along that direction, in norms of the known mean.
        base: "mean": the known mean, the same for all malicious clients. "own": every malicious client's own update.
            "copied": the known update that is least along the known mean, the same for all malicious clients.
        base_weight: The factor of the base, from 0 to 1.
    """

    direction: DirectionName
    magnitude: float
    base: BaseName = "mean"
    base_weight: float = 0.0

    def neighbors(self, step: float) -> Iterator[Candidate]:
        """Candidates with a larger or smaller magnitude or base weight. `step` is 1 at most."""
        yield replace(self, magnitude=min(MAX_MAGNITUDE, self.magnitude * GRID_RATIO**step))
        yield replace(self, magnitude=self.magnitude * GRID_RATIO**-step)
        if self.base_weight < 1:
            yield replace(self, base_weight=min(1.0, self.base_weight + step))
        if self.base_weight > 0:
            yield replace(self, base_weight=max(0.0, self.base_weight - step))


GRID_RATIO = 5.0  # between two magnitudes of the grid
MAX_MAGNITUDE = GRID_RATIO**2  # a defense that accepts this is broken; longer updates would only lead to NaN sooner
DIRECTIONS: tuple[DirectionName, ...] = get_args(DirectionName)
BASES: tuple[tuple[BaseName, float], ...] = (("mean", 0.0), ("mean", 1.0), ("own", 1.0))
HONEST_CANDIDATE = Candidate("reversed", 0.0, "own", 1.0)  # every malicious client sends its own update unchanged
# The first is inner product manipulation with ε = 5. The most promising come first, for searches with few trials.
CANDIDATE_GRID = tuple(
    Candidate(direction, magnitude, *base)
    for magnitude in (GRID_RATIO, 1.0, MAX_MAGNITUDE, 1 / GRID_RATIO)
    for base in BASES
    for direction in DIRECTIONS
)


@dataclass(frozen=True, eq=False)
class CandidateBuilder:
    """Turns candidates into the rows that malicious clients send in one round."""

    directions: Mapping[str, Float[Tensor, " d"]]
    bases: Mapping[str, Float[Tensor, "m d"]]

    @classmethod
    def from_cohort(
        cls, cohort: Cohort, known: Float[Tensor, "k d"], malicious: Bool[Tensor, " n"]
    ) -> CandidateBuilder:
        own = cohort.updates[malicious]
        mean = known.mean(dim=0)
        t = cohort.layout.n_trainable
        copied = known[(known[:, :t] @ mean[:t]).argmin()]
        bases = {"mean": mean.expand_as(own), "own": own, "copied": copied.expand_as(own)}
        return cls(_compute_directions(cohort, known, mean), bases)

    def build(self, candidate: Candidate) -> Float[Tensor, "m d"]:
        """The row of every malicious client. NaN and infinity are replaced: a defense would reject them."""
        damage = candidate.magnitude * self.directions[candidate.direction]
        return (candidate.base_weight * self.bases[candidate.base] + damage).nan_to_num()


def _compute_directions(cohort: Cohort, known: Tensor, mean: Float[Tensor, " d"]) -> dict[str, Float[Tensor, " d"]]:
    """All have the norm of the mean over the trainable coordinates. Buffers are scaled by the same factor."""
    reversed_, t = -mean, cohort.layout.n_trainable
    last_layer = torch.zeros_like(reversed_)
    head = cohort.layout.slices[cohort.layout.head or cohort.layout.trainable[-1]]  # a guess is enough to attack
    last_layer[head] = reversed_[head]
    deviation = known.double().std(dim=0, correction=0).to(reversed_.dtype)
    directions = {
        "reversed": reversed_,  # inner product manipulation
        "orthogonal": _remove_model(cohort, reversed_),  # hidden from rules that compare updates with the model
        "sign": reversed_.sign(),  # the same in every coordinate, against coordinate-wise rules
        "deviation": reversed_.sign() * deviation,  # most where honest clients differ most
        "last_layer": last_layer,
        "positive_cosine": _rotate_to_positive_cosine(known, reversed_, t),  # similar to honest updates on average
    }
    norm, own_norms = row_norms(mean[None, :t]), row_norms(torch.stack([*directions.values()])[:, :t])
    factors = torch.where(own_norms > 0, norm / own_norms, 0).to(reversed_.dtype)
    return {name: factor * direction for factor, (name, direction) in zip(factors, directions.items(), strict=True)}


def _remove_model(cohort: Cohort, direction: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """Make every trainable tensor of the direction orthogonal to the same tensor of the global model."""
    orthogonal = direction.clone()
    for name in cohort.layout.trainable:
        where = cohort.layout.slices[name]
        orthogonal[where] = remove_projection(orthogonal[where], cohort.params[where])
    return orthogonal


def _rotate_to_positive_cosine(
    known: Float[Tensor, "k d"], direction: Float[Tensor, " d"], t: int
) -> Float[Tensor, " d"]:
    """Rotate the direction just so far that its mean cosine similarity with the known updates is positive.

    The mean update weights clients by their norm, the mean cosine does not. A direction can therefore oppose the mean
    update and still have a positive mean cosine.
    """
    center = normalize(normalize_rows(known[:, :t].double()).mean(dim=0))
    rotated, wide = direction.clone(), direction[:t].double()
    orthogonal = normalize(remove_projection(wide, center))
    rotated[:t] = (row_norms(wide[None]) * (orthogonal + 0.01 * center)).to(rotated.dtype)
    return rotated
