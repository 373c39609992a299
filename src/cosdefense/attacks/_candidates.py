"""What adaptive attackers choose from: a harmful direction, how far to go, how much honest camouflage to wear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort
from ..ops import row_norms
from ._geometry import unit, without

Heading = Literal["back", "sideways", "sign", "spread", "head", "tilted"]
Disguise = Literal["mean", "own"]


@dataclass(frozen=True)
class Forgery:
    """What attackers send: share · camouflage + magnitude · a direction as long as the mean."""

    heading: Heading
    magnitude: float  # in lengths of the mean update that the attackers know
    camouflage: Disguise = "mean"  # that mean, the same for all; or what each attacker has honestly found itself
    share: float = 0.0  # of the camouflage

    def neighbors(self, step: float) -> Iterator[Forgery]:
        """The same a little longer and shorter, with a little more camouflage and less; `step` is 1 at most."""
        yield replace(self, magnitude=min(LARGEST, self.magnitude * RATIO**step))
        yield replace(self, magnitude=self.magnitude * RATIO**-step)
        if self.share < 1:
            yield replace(self, share=min(1.0, self.share + step))
        if self.share > 0:
            yield replace(self, share=max(0.0, self.share - step))


RATIO = 5.0  # between two magnitudes of the grid
LARGEST = RATIO**2  # a defense that lets this through is broken: longer ones would only end in NaN sooner
HEADINGS: tuple[Heading, ...] = get_args(Heading)
WORN: tuple[tuple[Disguise, float], ...] = (("mean", 0.0), ("mean", 1.0), ("own", 1.0))
NOTHING = Forgery("back", 0.0, "own", 1.0)
# The first is inner product manipulation with ε = 5; the nearer the beginning, the longer something is known to work.
GRID = tuple(
    Forgery(heading, magnitude, *worn)
    for magnitude in (RATIO, 1.0, LARGEST, 1 / RATIO)
    for worn in WORN
    for heading in HEADINGS
)


@dataclass(frozen=True, eq=False)
class Material:
    """What a round gives the attackers to work with."""

    directions: Mapping[str, Float[Tensor, " d"]]
    camouflages: Mapping[str, Float[Tensor, "m d"]]

    @classmethod
    def of(cls, cohort: Cohort, known: Float[Tensor, "k d"], malicious: Bool[Tensor, " n"]) -> Material:
        own = cohort.updates[malicious]
        mean = known.mean(dim=0)
        return cls(_directions(cohort, known, mean), {"mean": mean.expand_as(own), "own": own})

    def rows(self, forgery: Forgery) -> Float[Tensor, "m d"]:
        """What each attacker sends; whatever the numbers, they stay numbers."""
        harm = forgery.magnitude * self.directions[forgery.heading]
        return (forgery.share * self.camouflages[forgery.camouflage] + harm).nan_to_num()


def _directions(cohort: Cohort, known: Tensor, mean: Float[Tensor, " d"]) -> dict[str, Float[Tensor, " d"]]:
    """All as long as the mean, over the weights; statistics that are not trained go along, as they go in the mean."""
    back, t = -mean, cohort.layout.n_trainable
    head = torch.zeros_like(back)
    where = cohort.layout.slices[cohort.layout.require_head()]
    head[where] = back[where]
    spread = known.double().std(dim=0, correction=0).to(back.dtype)
    found = {
        "back": back,  # inner product manipulation
        "sideways": _sideways(cohort, back),  # the same, unseen by rules that compare updates with the model
        "sign": back.sign(),  # all coordinates alike: for rules that look at each by itself
        "spread": back.sign() * spread,  # most where honest clients disagree most
        "head": head,  # the last layer alone
        "tilted": _tilted(known, back, t),  # the same, on the honest side by the mean of its cosines
    }
    length = row_norms(mean[None, :t])
    for name, direction in found.items():
        own = row_norms(direction[None, :t])
        found[name] = direction * torch.where(own > 0, length / own, 0).to(back.dtype)
    return found


def _sideways(cohort: Cohort, direction: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """Without what points along the global model, tensor by tensor: every layer becomes orthogonal to its own."""
    turned = direction.clone()
    for name in cohort.layout.trainable:
        where = cohort.layout.slices[name]
        turned[where] = without(turned[where], cohort.params[where])
    return turned


def _tilted(known: Float[Tensor, "k d"], direction: Float[Tensor, " d"], t: int) -> Float[Tensor, " d"]:
    """Turned just so far that its cosines with the known updates are positive in the mean.

    The mean update weighs clients by their length, the mean cosine does not: between the two there is room for harm.
    """
    center = unit(torch.stack([unit(row.double()) for row in known[:, :t]]).mean(dim=0))
    turned, wide = direction.clone(), direction[:t].double()
    sideways = unit(without(wide, center))
    turned[:t] = (row_norms(wide[None]) * (sideways + 0.01 * center)).to(turned.dtype)  # a little beyond orthogonal
    return turned
