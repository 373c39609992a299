"""Local model poisoning against Krum: the farthest step backwards that Krum still picks.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX
Security 2020. https://arxiv.org/abs/1911.11815
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, State, TooFewClients, generator
from ..filters import Krum
from ..filters.krum import sum_nearest
from ..ops import fraction_of, row_norms, squared_distances
from ._knowledge import Knowledge, check_choice, known_rows
from .attack import Attack


@dataclass(frozen=True)
class KrumPoisoning(Attack):
    """All attackers send −λ · sign(mean known update), λ halved from an upper bound until Krum picks one of them.

    Krum itself is asked, with the forged rows among those the attackers know. With partial knowledge
    these are their own honest updates and as many forged ones as it takes.
    """

    contamination: float = 0.3  # what the attackers believe the server assumes
    knowledge: Knowledge = "full"  # of the honest clients' updates
    spread: float = 0.0  # how far attackers keep from each other, so as not to look alike
    min_fraction: float = 1e-5  # of the bound: below it the search gives up (the paper's is absolute, and 1e-5 as well)

    def __post_init__(self) -> None:
        check_choice("knowledge", self.knowledge, Knowledge)
        if not 0 <= self.spread < math.inf:
            raise ValueError(f"KrumPoisoning.spread must be at least 0 and finite, got {self.spread}")
        if not 0 < self.min_fraction < math.inf:
            raise ValueError(f"KrumPoisoning.min_fraction must be positive and finite, got {self.min_fraction}")
        Krum(self.contamination)  # its own check

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        known = cohort.updates[known_rows(malicious, self.knowledge)]
        direction = -known.mean(dim=0).sign()
        jitter = self._jitter(cohort, malicious)
        backwards = self._farthest(cohort, known, direction, jitter)
        forged = cohort.updates.clone()
        forged[malicious] = backwards * direction + jitter
        return forged, state

    def _farthest(
        self, cohort: Cohort, known: Float[Tensor, "m d"], direction: Float[Tensor, " d"], jitter: Float[Tensor, "f d"]
    ) -> float:
        """λ: tried with all attackers where the honest ones are known, else with one forged row, two, …"""
        bound = self._bound(known[:, : cohort.layout.n_trainable], len(jitter))
        lengths = [bound]
        while lengths[-1] / 2 > self.min_fraction * bound:
            lengths.append(lengths[-1] / 2)
        for count in [len(jitter)] if self.knowledge == "full" else range(1, len(jitter) + 1):
            for length in lengths:
                if self._picked(cohort, known, length * direction + jitter[:count]):
                    return length
        return lengths[-1]

    def _picked(self, cohort: Cohort, known: Float[Tensor, "m d"], forged: Float[Tensor, "f d"]) -> bool:
        """Whether Krum, faced with these rows, picks forged ones only."""
        rows = torch.cat([known, forged])
        trial = Cohort.of(rows, cohort.params, cohort.layout)
        try:
            judgment, _ = Krum(self.contamination)(trial, None)
        except TooFewClients:
            return False
        return not bool((judgment.weights[: len(known)] != 0).any())

    def _bound(self, known: Float[Tensor, "m t"], n_malicious: int) -> float:
        """Beyond this λ no Krum would pick it: the paper's bound, for squared distances."""
        n, size = len(known) + n_malicious, known.shape[1]
        f = fraction_of(self.contamination, n)
        longest = float(row_norms(known).max()) / math.sqrt(size)
        n_neighbors = min(max(1, n - f - 2), len(known) - 1)
        if n_neighbors < 1:
            return longest
        nearest = float(sum_nearest(squared_distances(known), n_neighbors).min())
        return math.sqrt(nearest / (max(1, n - 2 * f - 1) * size)) + longest

    def _jitter(self, cohort: Cohort, malicious: Bool[Tensor, " n"]) -> Float[Tensor, "f d"]:
        """Random directions of random length up to `spread`, each attacker its own."""
        size, device = cohort.updates.shape[1], cohort.updates.device
        rows = cohort.updates.new_zeros(int(malicious.sum()), size)
        for i, client in enumerate(cohort.clients[malicious].tolist() if self.spread else ()):
            rng = generator(cohort.seed, "krum poisoning", client)
            noise = torch.randn(size, generator=rng, dtype=rows.dtype)
            rows[i] = (self.spread * torch.rand(1, generator=rng, dtype=rows.dtype) * noise / noise.norm()).to(device)
        return rows
