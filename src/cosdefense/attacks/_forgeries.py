"""Forged updates for searches over several rounds: a candidate with noise, sent by all or by some malicious clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort
from ..ops import median_of, row_norms
from ._candidates import HONEST_CANDIDATE, Candidate, CandidateBuilder
from ._geometry import draw_unit_vectors

ZERO_CANDIDATE = Candidate("reversed", 0.0)  # every malicious client sends zeros


@dataclass(frozen=True)
class Forgery:
    """What the malicious clients of a round send.

    Args:
        candidate: The forged update.
        noise: The length of a random vector of each client's own that is added, in median norms of the known updates.
        share: The share of the malicious clients that sends this, at least one. The others send `rest`.
        rest: What the others send.
    """

    candidate: Candidate
    noise: float = 0.0
    share: float = 1.0
    rest: Candidate = HONEST_CANDIDATE

    def neighbors(self, step: float) -> Iterator[Forgery]:
        """Forgeries that differ a little: in magnitude, base weight, noise or share. `step` is 1 at most."""
        for candidate in self.candidate.neighbors(step):
            yield replace(self, candidate=candidate)
        yield replace(self, noise=self.noise + step)
        if self.noise > 0:
            yield replace(self, noise=max(0.0, self.noise - step))
        if self.share > 0:
            yield replace(self, share=max(0.0, self.share - step))
        if self.share < 1:
            yield replace(self, share=min(1.0, self.share + step))

    def __str__(self) -> str:
        sent = _describe(self.candidate) + (f" + noise of {self.noise:.3g} norms" if self.noise else "")
        return sent if self.share == 1 else f"{sent} ({self.share:.0%} of them; the others: {_describe(self.rest)})"


HONEST_FORGERY = Forgery(HONEST_CANDIDATE)
# One of each known kind. The names are those of the catalog's attacks where there is one.
STANDARD_FORGERIES: dict[str, Forgery] = {
    "honest": HONEST_FORGERY,
    "zero updates": Forgery(ZERO_CANDIDATE),
    "inner product": Forgery(Candidate("reversed", 1.0)),
    "inner product × 5": Forgery(Candidate("reversed", 5.0)),
    "inner product × 25": Forgery(Candidate("reversed", 25.0)),
    "sign flip": Forgery(Candidate("reversed", 0.0, "own", -1.0)),
    "sign flip × 5": Forgery(Candidate("reversed", 0.0, "own", -5.0)),
    "orthogonal inner product": Forgery(Candidate("orthogonal", 5.0)),
    "camouflage": Forgery(Candidate("reversed", 2.0, "own", 1.0)),
    "shifted mean": Forgery(Candidate("deviation", 1.0, "mean", 1.0)),
    "shifted mean × 5": Forgery(Candidate("deviation", 5.0, "mean", 1.0)),
    "signs": Forgery(Candidate("sign", 1.0)),
    "positive cosine": Forgery(Candidate("positive_cosine", 1.0)),
    "last layer": Forgery(Candidate("last_layer", 5.0)),
    "mimic": Forgery(Candidate("reversed", 0.0, "copied", 1.0)),
    "noise": Forgery(ZERO_CANDIDATE, noise=1.0),
    "noise × 5": Forgery(ZERO_CANDIDATE, noise=5.0),
    "noise camouflage": Forgery(Candidate("reversed", 0.5), noise=0.85),
    "noise camouflage, strength 2": Forgery(Candidate("reversed", 1.0), noise=0.85),
    "half zero, half inner product": Forgery(Candidate("reversed", 1.0), share=0.5, rest=ZERO_CANDIDATE),
}


@dataclass(frozen=True, eq=False)
class ForgeryBuilder:
    """Turns forgeries into the rows that malicious clients send in one round."""

    candidates: CandidateBuilder
    cohort: Cohort
    known: Float[Tensor, "k d"]
    malicious: Bool[Tensor, " n"]

    @classmethod
    def from_cohort(cls, cohort: Cohort, known: Float[Tensor, "k d"], malicious: Bool[Tensor, " n"]) -> ForgeryBuilder:
        return cls(CandidateBuilder.from_cohort(cohort, known, malicious), cohort, known, malicious)

    @cached_property
    def noise(self) -> Float[Tensor, "m t"]:
        """A random vector for every malicious client, as long as the median of the known updates."""
        norm = median_of(row_norms(self.known[:, : self.cohort.layout.n_trainable]).double())
        vectors = norm * draw_unit_vectors(self.cohort, self.malicious, "forgeries")
        return vectors.to(self.known.dtype)

    def build(self, forgery: Forgery) -> Float[Tensor, "m d"]:
        """The row of every malicious client, in the order of the cohort."""
        rows = self.candidates.build(forgery.candidate)
        if forgery.noise:
            t = self.cohort.layout.n_trainable
            rows[:, :t] = (rows[:, :t] + forgery.noise * self.noise).nan_to_num()
        n_senders = max(1, math.ceil(forgery.share * len(rows)))
        if n_senders < len(rows):
            rows[n_senders:] = self.candidates.build(forgery.rest)[n_senders:]
        return rows


def _describe(candidate: Candidate) -> str:
    base = {"mean": "honest mean", "own": "own update", "copied": "copy of one honest update"}[candidate.base]
    direction = f"{candidate.magnitude:.3g} × {candidate.direction.replace('_', ' ')} mean"
    parts = [f"{candidate.base_weight:.3g} × {base}"] * (candidate.base_weight != 0) + [direction] * (
        candidate.magnitude != 0
    )
    return " + ".join(parts) or "zeros"
