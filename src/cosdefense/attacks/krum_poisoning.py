"""Local model poisoning against Krum: the longest reversed update that Krum still selects.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. https://arxiv.org/abs/1911.11815
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, generator
from ..filters import Krum
from ..filters.krum import krum_scores, sum_nearest
from ..ops import fraction_of, row_norms, squared_distances
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class KrumPoisoning(Attack):
    """All malicious clients send −λ · sign(μ), the largest λ of a search for which Krum selects one of them.

    μ is the mean of the known updates. The search starts at an upper bound and halves λ until Krum, applied to the
    known and the forged updates, selects a forged one. With partial knowledge the known updates are the malicious
    clients' own, and the search tries one forged update first, then two, and so on.

    Krum needs more than 2 f + 2 updates. Where there are not enough for f = floor(contamination · n), the search uses
    the largest f for which there are: with 10 updates f is 3 at most.

    Args:
        contamination: The fraction of malicious clients that the server's Krum is assumed to expect.
        knowledge: "full": the honest updates are known. "partial": the malicious clients' own updates are used
            instead.
        spread: The largest norm of a random offset that every malicious client adds, so that the forged updates are
            not equal.
        min_fraction: The search stops when λ falls below this fraction of the upper bound. The paper's limit is 1e-5
            in absolute terms.
    """

    contamination: float = 0.3
    knowledge: Knowledge = "full"
    spread: float = 0.0
    min_fraction: float = 1e-5

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 <= self.spread < math.inf:
            raise ValueError(f"KrumPoisoning.spread must be at least 0 and finite, got {self.spread}")
        if not 0 < self.min_fraction < math.inf:
            raise ValueError(f"KrumPoisoning.min_fraction must be positive and finite, got {self.min_fraction}")
        Krum(self.contamination)  # checks the option

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        direction = -known.mean(dim=0).sign()
        offsets = self._draw_offsets(cohort, malicious)
        length = self._find_longest(cohort, known, direction, offsets)
        forged = cohort.updates.clone()
        forged[malicious] = length * direction + offsets
        return forged, state

    def _find_longest(
        self, cohort: Cohort, known: Float[Tensor, "m d"], direction: Float[Tensor, " d"], offsets: Float[Tensor, "f d"]
    ) -> float:
        """Search for λ: with all forged rows at full knowledge, else with one forged row, then two, and so on."""
        bound = self._compute_bound(known[:, : cohort.layout.n_trainable], len(offsets))
        lengths = [bound]
        while lengths[-1] / 2 > self.min_fraction * bound:
            lengths.append(lengths[-1] / 2)
        for count in [len(offsets)] if self.knowledge == "full" else range(1, len(offsets) + 1):
            for length in lengths:
                if self._is_selected(cohort, known, length * direction + offsets[:count]):
                    return length
        return lengths[-1]

    def _is_selected(self, cohort: Cohort, known: Float[Tensor, "m d"], forged: Float[Tensor, "f d"]) -> bool:
        """Whether Krum, applied to these rows, selects only forged ones."""
        rows = torch.cat([known, forged])
        if len(rows) < 3:  # Krum does not work with any f
            return False
        trial = Cohort.of(rows, cohort.params, cohort.layout)
        scores = krum_scores(Krum(), trial, self._feasible_f(len(rows)))
        return not bool((scores[: len(known)] <= scores.min()).any())

    def _feasible_f(self, n: int) -> int:
        """The number of malicious clients that Krum expects among n, reduced to what it can work with."""
        return min(fraction_of(self.contamination, n), max(0, (n - 3) // 2))

    def _compute_bound(self, known: Float[Tensor, "m t"], n_malicious: int) -> float:
        """The paper's upper bound of λ, for squared distances: Krum selects no update beyond it."""
        n, size = len(known) + n_malicious, known.shape[1]
        f = self._feasible_f(n)
        longest = float(row_norms(known).max()) / math.sqrt(size)
        n_neighbors = min(max(1, n - f - 2), len(known) - 1)
        if n_neighbors < 1:
            return longest
        nearest = float(sum_nearest(squared_distances(known), n_neighbors).min())
        return math.sqrt(nearest / (max(1, n - 2 * f - 1) * size)) + longest

    def _draw_offsets(self, cohort: Cohort, malicious: Bool[Tensor, " n"]) -> Float[Tensor, "f d"]:
        """Draw a vector of random direction and of random norm up to `spread` for every malicious client.

        They are drawn on the updates' device: a CPU and a GPU draw different numbers.
        """
        size, device = cohort.updates.shape[1], cohort.updates.device
        rows = cohort.updates.new_zeros(int(malicious.sum()), size)
        for i, client in enumerate(cohort.clients[malicious].tolist() if self.spread else ()):
            rng = generator(cohort.seed, "krum poisoning", client, device=device)
            noise = torch.randn(size, generator=rng, dtype=rows.dtype, device=device)
            length = self.spread * torch.rand(1, generator=rng, dtype=rows.dtype, device=device)
            rows[i] = length * noise / noise.norm()
        return rows
