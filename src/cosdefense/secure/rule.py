"""Who is accepted, from the claims alone, in exact integers: two computers must agree to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .statements import Claim
from .terms import SHORTEST, STEPS, Terms

TIE = 16  # cosines this close mean nothing: CosDefense's tolerance of 8 · 2**−23, in units of 2**−24
MAD = Fraction("1.4826")  # the scaled median absolute deviation equals the standard deviation for normal scores


@dataclass(frozen=True)
class Decision:
    """What follows from the claims of the clients whose reports are valid.

    Args:
        weights: How much each client counts, in units of 1 / `STEPS` if lengths are opened; 0: rejected.
        scores: CosDefense's scores, from 0 to 1.
        memory: The running median norm for the next round, if lengths are opened.
        refused: Why the sum must not be opened, if so.
    """

    weights: tuple[int, ...]
    scores: tuple[float, ...]
    memory: float | None
    refused: str | None = None

    @property
    def n_accepted(self) -> int:
        return sum(weight > 0 for weight in self.weights)


def smallest_opening(colluders: float, n: int) -> int:
    """The fewest clients whose sum may be opened: without the colluders, at least two must be left."""
    return max(3, math.floor(colluders * n + 1e-9) + 2)


def decide(claims: Sequence[Claim], terms: Terms, memory: float | None, *, with_cosine: bool = True) -> Decision:
    """Apply the norm limit, then CosDefense among those that it accepts, then the conditions of an opening."""
    reason = refuse_count(len(claims), terms)
    if reason is not None:
        return _refuse(claims, memory, reason)
    factors, after = _norm_limit([c.length for c in claims], terms, memory)
    passed = [i for i, factor in enumerate(factors) if factor]
    # Without a cosine there is no statement about it: what a client claims means nothing.
    cosines = [claims[i].cosine if with_cosine else 0 for i in passed]
    kept = dict(zip(passed, _accept(cosines, terms), strict=True))
    weights = tuple(factor if kept.get(i, False) else 0 for i, factor in enumerate(factors))
    scores = [math.nan] * len(claims)
    for i, score in zip(passed, _scale(cosines), strict=True):
        scores[i] = score
    reason = refuse_opening(weights, terms)
    if reason is None:
        return Decision(weights, tuple(scores), after)
    return Decision((0,) * len(claims), tuple(scores), memory, reason)


def refuse_count(n_valid: int, terms: Terms) -> str | None:
    """Why a round with so many valid reports is not settled, if so."""
    return None if n_valid >= terms.quorum else f"{n_valid} valid reports, and the quorum is {terms.quorum}"


def refuse_opening(weights: Sequence[int], terms: Terms) -> str | None:
    """Why a sum with these weights must not be opened, if so."""
    accepted = [weight for weight in weights if weight]
    if len(accepted) < terms.smallest:
        return f"{len(accepted)} clients were accepted, and sums of fewer than {terms.smallest} stay secret"
    if _one_stands_out(accepted, terms):
        return f"one client would have more than 1/{terms.smallest} of the weight, and twice that of another"
    return None


def _one_stands_out(weights: Sequence[int], terms: Terms) -> bool:
    """Whether a sum with these weights would show one update more than a sum of equal weights shows each."""
    return max(weights) > 2 * min(weights) and max(weights) * terms.smallest > sum(weights)


def _refuse(claims: Sequence[Claim], memory: float | None, reason: str) -> Decision:
    return Decision((0,) * len(claims), (math.nan,) * len(claims), memory, reason)


def _accept(cosines: Sequence[int], terms: Terms) -> list[bool]:
    """`CosDefense` on integers. Its thresholds do not depend on the scale of the scores."""
    if not cosines or max(cosines) - min(cosines) <= TIE:
        return [True] * len(cosines)
    n, total, k = len(cosines), sum(cosines), Fraction(terms.deviations)
    if terms.threshold == "mad":
        center = _median(cosines)
        limit = center + k * MAD * _median([abs(q - center) for q in cosines])
        return [q <= limit for q in cosines]
    if terms.threshold == "mean":
        return [n * q < total for q in cosines]
    # q < mean + k · std, without the root: n²·var = n·Σq² − (Σq)².
    spread = k * k * (n * sum(q * q for q in cosines) - total**2)
    return [n * q < total or (n * q - total) ** 2 < spread for q in cosines]


def _scale(cosines: Sequence[int]) -> list[float]:
    """Scores from 0 to 1, as CosDefense reports them."""
    if not cosines or max(cosines) - min(cosines) <= TIE:
        return [0.0] * len(cosines)
    low, high = min(cosines), max(cosines)
    return [(q - low) / (high - low) for q in cosines]


def _norm_limit(lengths: Sequence[int], terms: Terms, memory: float | None) -> tuple[list[int], float | None]:
    """`NormLimit` on claimed lengths: a factor for each client, 0 for those that are far too long."""
    if terms.norm_limit is None:
        return [1] * len(lengths), memory
    assert terms.clip is not None
    limit, unit = terms.norm_limit, terms.clip / STEPS
    middle = Fraction(STEPS) if limit.started else _median(lengths)
    quantile = sorted(lengths)[math.floor(limit.quantile * (len(lengths) - 1))]
    most = Fraction(limit.max_ratio) * max(middle, Fraction(quantile))
    accepted = [length for length in lengths if length <= most]
    factors = [0 if v > most else min(STEPS, math.floor(STEPS * middle / v)) for v in lengths]
    now = min(_median(accepted), 2 * middle)
    current = float(now) * unit
    # `core.running_average`, without torch, which a helper does not need.
    average = current if memory is None else limit.decay * memory + (1 - limit.decay) * current
    return factors, max(SHORTEST, average)  # a model that no longer changes: the next round needs terms all the same


def _median(values: Sequence[int | Fraction]) -> Fraction:
    ordered, half = sorted(values), len(values) // 2
    return Fraction(ordered[half] + ordered[-half - 1]) / 2
