"""What the CosDefense authors compared with, as their code does it, and what only their figures need.

No server knows who is malicious, and counters should not be averaged.
These parts exist to reproduce the paper's numbers, to show what its habits do to them, and to test its claims.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from cosdefense import Cohort, Defense, Judgment
from cosdefense.aggregators import Mean, Median
from cosdefense.core import Layout, State
from cosdefense.filters import Clip, CosDefense
from cosdefense.filters.krum import sum_nearest
from cosdefense.ops import cosine, min_max, row_norms, squared_distances
from cosdefense.simulation.oracle import Oracle
from cosdefense.training.models import Shape, resnet18


@dataclass(frozen=True)
class OracleKrum(Oracle):
    """Krum as in the CosDefense authors' code: it is given the number of malicious clients of the round.

    It sums plain, not squared, distances to the n − f − 3 nearest. Where that leaves no neighbour
    their code picks the first row, which by their row order is always honest; here ties stay together.
    """

    malicious: tuple[int, ...] = ()  # filled in by the simulator

    def with_malicious(self, malicious: Int[Tensor, " m"]) -> OracleKrum:
        return replace(self, malicious=tuple(malicious.tolist()))

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        f = sum(client in self.malicious for client in cohort.clients.tolist())
        n_neighbors = max(len(cohort) - f - 3, 0)
        scores = sum_nearest(squared_distances(cohort.trainable()).sqrt(), n_neighbors)
        return Judgment(scores, scores <= scores.min()), state


def krum() -> Defense:
    return Defense((OracleKrum(),), Mean())


@dataclass(frozen=True)
class TracedCosDefense(CosDefense):
    """CosDefense that watches for some rounds before it rejects; its scores are the cosines as they are.

    The figure of scores over the rounds begins before the defense does.
    """

    patience: int = 200  # rounds of watching

    def init(self) -> State:
        return 0

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates, weights = cohort.layer(self.layer)
        judgment, _ = super().__call__(cohort, None)
        accepted = judgment.weights if state >= self.patience else torch.ones_like(cohort.weights)
        return Judgment(cosine(updates, weights).abs(), accepted), state + 1


def traced_cosdefense(patience: int = 200) -> Defense:
    return Defense((TracedCosDefense(patience=patience),), Mean())


@dataclass(frozen=True)
class WholeCosDefense(CosDefense):
    """CosDefense that compares all weights at once, to see what the choice of the last layer does."""

    def select_layers(self, layout: Layout) -> tuple[str, ...]:
        return layout.trainable

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.trainable()
        alignment = cosine(updates, cohort.params[: updates.shape[1]]).abs()
        scores = min_max(alignment, tolerance=8 * torch.finfo(alignment.dtype).eps)
        return Judgment(scores, self._accept(scores)), state


def whole_cosdefense() -> Defense:
    return Defense((WholeCosDefense(),), Mean())


@dataclass(frozen=True)
class WholeClip(Clip):
    """Clips by the length of everything that was sent: statistics and counters too, not the weights alone."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = row_norms(cohort.updates)
        factors = (self.max_norm / norms.clamp_min(self.max_norm)).to(cohort.updates.dtype)
        return Judgment(norms, torch.ones_like(cohort.weights), cohort.updates * factors[:, None]), state


def clipping_median(max_norm: float = 2.0) -> Defense:
    return Defense((WholeClip(max_norm),), Median())


def resnet18_with_counters(shape: Shape, n_outputs: int) -> nn.Module:
    """ResNet-18 whose 20 counters of batches travel with the weights, as a whole `state_dict` does.

    Each of them moves by 1 in every update, so that no update is shorter than √20.
    """
    model = resnet18(shape, n_outputs)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = torch.zeros(())
    return model
