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
        return cls(Directions(cohort, known, mean), bases)

    def build(self, candidate: Candidate) -> Float[Tensor, "m d"]:
        """The row of every malicious client. NaN and infinity are replaced: a defense would reject them."""
        damage = candidate.magnitude * self.directions[candidate.direction]
        return (candidate.base_weight * self.bases[candidate.base] + damage).nan_to_num()


class Directions(Mapping[str, Tensor]):
    """The damaging directions by name, computed when they are used: a search over many rounds uses few in each.

    All have the norm of the mean over the trainable coordinates. Buffers are scaled by the same factor.
    """

    def __init__(self, cohort: Cohort, known: Float[Tensor, "k d"], mean: Float[Tensor, " d"]) -> None:
        self._cohort, self._known, self._mean = cohort, known, mean
        self._norm = row_norms(mean[None, : cohort.layout.n_trainable])
        self._computed: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Float[Tensor, " d"]:
        if name not in self._computed:
            direction = self._compute(name)
            own_norm = row_norms(direction[None, : self._cohort.layout.n_trainable])
            factor = torch.where(own_norm > 0, self._norm / own_norm, 0).to(direction.dtype)
            self._computed[name] = direction * factor
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DIRECTIONS)

    def __len__(self) -> int:
        return len(DIRECTIONS)

    def _compute(self, name: str) -> Float[Tensor, " d"]:
        reversed_, layout = -self._mean, self._cohort.layout
        match name:
            case "reversed":  # inner product manipulation
                return reversed_
            case "orthogonal":  # hidden from rules that compare updates with the model
                return _remove_model(self._cohort, reversed_)
            case "sign":  # the same in every coordinate, against coordinate-wise rules
                return reversed_.sign()
            case "deviation":  # most where honest clients differ most
                return reversed_.sign() * self._known.double().std(dim=0, correction=0).to(reversed_.dtype)
            case "last_layer":
                last_layer = torch.zeros_like(reversed_)
                head = layout.slices[layout.head or layout.trainable[-1]]  # a guess is enough to attack
                last_layer[head] = reversed_[head]
                return last_layer
            case "positive_cosine":  # similar to honest updates on average
                return _rotate_to_positive_cosine(self._known, reversed_, layout.n_trainable)
        raise KeyError(name)


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
