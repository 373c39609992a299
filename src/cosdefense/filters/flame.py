"""FLAME: accept the largest group of models that point the same way, and clip them to the median norm.

Nguyen, Rieger, Chen, Yalame, Möllering, Fereidooni, Marchal, Miettinen, Mirhoseini, Zeitouni, Koushanfar, Sadeghi,
Schneider. FLAME: Taming Backdoors in Federated Learning. USENIX Security 2022. https://arxiv.org/abs/2101.02281
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Cohort, Filter, Judgment, State
from ..ops import clip_rows, cosine_distances, majority_component, median_of, row_norms

Compared = Literal["models", "updates", "head"]


@dataclass(frozen=True)
class FLAME(Filter):
    """Link clients by growing cosine distance until more than half are connected; accept and clip those.

    The distance is 1 − cos(w + uᵢ, w + uⱼ). Accepted updates are clipped to the median norm of all updates. The rule is
    completed by noise: NoisyMean with `relative`. The score is the distance to the nearest accepted client. Without an
    attack a third or more of the clients are rejected. Of two groups of honest clients with different data one is
    lost. Malicious clients that are many and alike may be linked first.

    Args:
        compared: What is compared: "models", as in the paper and public implementations; "updates"; or "head", the
            classifier's weights in the models.
    """

    compared: Compared = "models"

    def __post_init__(self) -> None:
        if self.compared not in get_args(Compared):
            raise ValueError(f"FLAME.compared must be one of {get_args(Compared)}, got {self.compared!r}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        distances = cosine_distances(*self._select(cohort))
        accepted = majority_component(distances)
        norms = row_norms(cohort.trainable())
        clipped = clip_rows(cohort.updates, norms, float(median_of(norms)))
        return Judgment(distance_to_accepted(distances, accepted), accepted, clipped), state

    def _select(self, cohort: Cohort) -> tuple[Float[Tensor, "n k"], Float[Tensor, " k"] | None]:
        if self.compared == "head":
            return cohort.layer()
        origin = cohort.params[: cohort.layout.n_trainable] if self.compared == "models" else None
        return cohort.trainable(), origin


def distance_to_accepted(distances: Float[Tensor, "n n"], accepted: Tensor) -> Float[Tensor, " n"]:
    """The least distance to another accepted client: larger for every rejected client than for any accepted one."""
    others = distances.clone().fill_diagonal_(torch.inf)[:, accepted]
    return torch.where(others.amin(dim=1).isinf(), 0, others.amin(dim=1))  # the only client has no others
