"""Updates as integers, and the opened sum as an update again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ring import Signed, Words
from .terms import HEAD_BITS, MAX_LENGTH, STEPS, Terms

PUBLIC_BITS = 24  # fraction bits of the global head
PIECE = 1 << 16  # coordinates at a time
HEAD_RANGE = 128.0  # the largest coordinate of a head and of its update

Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Encoded:
    """An update in integers: the head, and words for everything else."""

    head: Signed
    words: Words


def encode_public_head(head: NDArray[Any]) -> list[int]:
    """The global head as integers."""
    values = np.clip(head.astype(np.float64), -HEAD_RANGE, HEAD_RANGE) * 2.0**PUBLIC_BITS
    return [int(value) for value in np.rint(values)]


def shorten(trainable: Floats, buffers: Floats, terms: Terms) -> tuple[Floats, Floats]:
    """What an honest client does to its update: clip the trainable part, then the buffers, in their units.

    The factor of the trainable part applies to the buffers too, as `Clip` does: an update is trusted as a whole.
    """
    if terms.clip is not None:
        limit = terms.clip if terms.norm_limit is None else terms.clip * (MAX_LENGTH - 1) / STEPS
        factor = _clip_factor(trainable, limit)
        if factor < 1:
            trainable, buffers = trainable * factor, buffers * factor
    scaled = buffers / buffer_units(terms)
    return trainable, scaled * _clip_factor(scaled, terms.buffer_limit)


def encode(head: Floats, weights: Floats, buffers: Floats, theta: Sequence[int], terms: Terms) -> Encoded:
    """A shortened update in integers. Rounded to nearest: the same update always gives the same integers.

    A head of zeros has no cosine. Its coordinate where the global head is smallest becomes one unit, 2**−40.
    """
    integers = np.rint(np.clip(head, -HEAD_RANGE, HEAD_RANGE) * 2.0**HEAD_BITS).astype(np.int64)
    if len(integers) and not integers.any():
        integers[min(range(len(theta)), key=lambda i: abs(theta[i]))] = 1
    words = np.empty(len(weights) + len(buffers), terms.ring.dtype)
    most = math.inf if terms.clip is not None else math.floor(terms.largest * 2.0**terms.fraction) - 1.0
    for some in _pieces(len(weights)):
        words[some] = terms.ring.from_signed(_round(weights[some] * 2.0**terms.fraction, most))
    words[len(weights) :] = terms.ring.from_signed(_round(buffers * 2.0**terms.buffer_fraction, math.inf))
    return Encoded(integers, words)


def decode_mean(head: Sequence[int], words: Words, n_accepted: int, terms: Terms) -> tuple[Floats, Floats, Floats]:
    """The mean of the accepted from the opened sums: head, other weights, buffers."""
    count = n_accepted * (1 if terms.norm_limit is None else STEPS)
    opened = np.array([total / (count << HEAD_BITS) for total in head], np.float64)  # exact quotients, rounded once
    return opened, *decode_words(words, count, count, terms)


def decode_words(words: Words, divisor: float, buffer_divisor: float, terms: Terms) -> tuple[Floats, Floats]:
    """The mean's weights and buffers from the opened sum, which is so many times as large."""
    signed = terms.ring.to_signed(words).astype(np.float64)
    weights = signed[: terms.weights] / (divisor * 2.0**terms.fraction)
    # One statistic moves by at most `buffer_clip` of its unit per round, whatever the accepted clients sent.
    rest = np.clip(
        signed[terms.weights :] / (buffer_divisor * 2.0**terms.buffer_fraction), -terms.buffer_clip, terms.buffer_clip
    )
    return weights, rest * buffer_units(terms)


def buffer_units(terms: Terms) -> Floats:
    """The unit of every buffer coordinate."""
    if not terms.units:
        return np.ones(0)
    return np.concatenate([np.full(size, 2.0**exponent) for size, exponent in terms.units])


def unit_exponent(scale: float) -> int:
    """The exponent of the power of two at or above a scale. A scale of zero carries no information: 1."""
    if not 0 < scale < math.inf:
        return 0
    mantissa, exponent = math.frexp(scale)
    return max(-64, min(64, exponent - (mantissa == 0.5)))


def _round(values: Floats, most: float) -> Signed:
    np.rint(values, out=values)
    if most < math.inf:
        np.clip(values, -most, most, out=values)
    return values.astype(np.int64)


def _pieces(n: int) -> list[slice]:
    """Parts of a vector that fit into the processor's cache: passes over a whole model take several times as long."""
    return [slice(start, min(start + PIECE, n)) for start in range(0, n, PIECE)]


def _clip_factor(values: Floats, limit: float) -> float:
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))  # so that no square overflows
    if largest == 0:
        return 1.0
    total = sum(float(np.square(values[some] / largest).sum()) for some in _pieces(len(values)))
    return min(1.0, limit / (largest * math.sqrt(total)))
