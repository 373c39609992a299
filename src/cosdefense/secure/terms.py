"""The public terms of a round: sizes, limits and the rule. Everybody computes formats and statements from them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, get_args

from .ring import Ring
from .sketch import SKETCH
from .streams import digest

VERSION = 1
HEAD_BITS = 40  # fraction bits of the head's update
STEPS = 256  # a claimed length is in units of clip / STEPS; weights are in units of 1 / STEPS
MAX_LENGTH = 16 * STEPS  # the largest length that can be claimed
TOLERANCE = Fraction(5, 4)  # how far above its limit the estimated length may be: estimates are off by a few percent
SHORTEST, LONGEST = 2.0**-20, 2.0**20  # limits of norms
MAX_CLIENTS, MAX_HEAD, MAX_COORDINATES, MAX_REFERENCES = 1_000, 500_000, 500_000_000, 8
MEAN_ROWS = 4  # what a running mean adds to the rows that are multiplied, see `secret_mean.py`

Threshold = Literal["mean", "mean+std", "mad"]


class RefusedTerms(ValueError):
    """Terms that cannot be used: malformed, or outside the limits."""


@dataclass(frozen=True)
class NormLimitTerms:
    """The running norm limit: see `cosdefense.filters.NormLimit`."""

    max_ratio: float
    decay: float
    quantile: float
    started: bool  # whether `Terms.clip` is the running median norm; in the first round it is a unit only


@dataclass(frozen=True)
class Terms:
    """What all parties of a round know.

    Args:
        clients: The clients that are asked, at most.
        head: Coordinates of the tensor that CosDefense looks at; 0 if updates are compared with each other.
        weights: Other trainable coordinates.
        buffers: Coordinates that are not trained.
        units: For each tensor of buffers: its size, and the exponent of its unit, a power of two.
        threshold: CosDefense's.
        deviations: CosDefense's `k`.
        clip: The norm to which clients clip the trainable part themselves. None: the format is the only bound.
        norm_limit: The running norm limit, if lengths are opened.
        buffer_clip: The norm of the buffers' update, in units and per root of their number.
        largest: Without `clip`, the largest coordinate.
        smallest: The least number of accepted clients whose sum is opened.
        quorum: The least number of valid reports.
        references: The number of public vectors that updates are compared with, beside each other. None: no update is
            compared with another, and CosDefense decides.
        mean: Whether updates are also compared with a running mean of all updates, which nobody sees.
    """

    clients: int
    head: int
    weights: int
    buffers: int
    units: tuple[tuple[int, int], ...]
    threshold: Threshold
    deviations: float
    clip: float | None
    norm_limit: NormLimitTerms | None
    buffer_clip: float
    largest: float
    smallest: int
    quorum: int
    references: int | None = None
    mean: bool = False

    def __post_init__(self) -> None:
        _check(3 <= self.smallest <= self.clients <= MAX_CLIENTS, "3 ≤ smallest ≤ clients ≤ 1000", self)
        _check(self.smallest <= self.quorum <= self.clients, "smallest ≤ quorum ≤ clients", self)
        if self.references is None:
            _check(1 <= self.head <= MAX_HEAD, f"1 ≤ head ≤ {MAX_HEAD}", self)
        else:
            _check(0 <= self.references <= MAX_REFERENCES, f"references from 0 to {MAX_REFERENCES}", self)
            _check(self.head == 0 < self.weights, "no head where updates are compared", self)
            _check(self.clip is not None and self.norm_limit is None, "a clip where updates are compared", self)
        _check(self.compares or not self.mean, "no running mean where updates are not compared", self)
        _check(self.weights >= 0 <= self.buffers, "weights and buffers ≥ 0", self)
        _check(self.head + self.weights + self.buffers <= MAX_COORDINATES, f"size ≤ {MAX_COORDINATES}", self)
        _check(all(size >= 0 and abs(e) <= 64 for size, e in self.units), "units from 2**−64 to 2**64", self)
        _check(sum(size for size, _ in self.units) == self.buffers, "units for all buffers", self)
        _check(self.threshold in get_args(Threshold), f"threshold one of {get_args(Threshold)}", self)
        _check(0 <= self.deviations < math.inf, "deviations ≥ 0", self)
        for name in ("clip", "buffer_clip", "largest"):
            value = getattr(self, name)
            _check(value is None or SHORTEST <= value <= LONGEST, f"{name} from 2**−20 to 2**20", self)
        if self.norm_limit is not None:
            limit = self.norm_limit
            _check(self.clip is not None, "a clip beside a norm limit", self)
            _check(1 <= limit.max_ratio < math.inf, "max_ratio ≥ 1", self)
            _check(0 <= limit.decay < 1 and 0 <= limit.quantile < 1, "decay and quantile in [0, 1)", self)
        _check(min(self.fraction, self.buffer_fraction) >= 4, "limits that leave 4 fraction bits", self)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Read terms strictly: exactly these fields, of these types."""
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RefusedTerms(f"terms are not JSON: {error}") from error
        if not isinstance(table, dict) or table.pop("version", None) != VERSION:
            raise RefusedTerms(f"terms need version {VERSION}")
        terms = _typed(cls, {"references": None, "mean": False, **table})
        if terms.to_json() != text:
            raise RefusedTerms("terms are not in canonical form")
        return terms

    def to_json(self) -> str:
        """The canonical form, which is what digests cover."""
        table = {"version": VERSION, **asdict(self)}
        if self.references is None:
            del table["references"]
        if not self.mean:
            del table["mean"]
        return json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def digest(self) -> bytes:
        return digest("terms", self.to_json().encode())

    @property
    def words(self) -> int:
        """Words of a report: everything but the head."""
        return self.weights + self.buffers

    @property
    def compares(self) -> bool:
        """Whether updates are compared with each other."""
        return self.references is not None

    @property
    def rows(self) -> int:
        """The most rows that are multiplied with each other."""
        return self.clients + MEAN_ROWS * self.mean

    @cached_property
    def ring(self) -> Ring:
        if self.compares:
            return Ring(64)  # inner products must not wrap
        return Ring(32 if self.norm_limit is None else 40)  # eight more bits for weights

    @cached_property
    def fraction(self) -> int:
        """Fraction bits of weights: no sum of honest words wraps, and a word that wraps is 50 clips or more."""
        if self.clip is None:
            return 31 - _log2_ceiling(self.largest * max(self.clients, 10))
        if self.compares:
            # An inner product is below 2**62 even if both sketches look eight times as long as 1.25 clips.
            return min(HEAD_BITS, 31 - _log2_ceiling(10 * self.clip))
        longest = 5 * self.clip if self.norm_limit is None else 1.25 * MAX_LENGTH / STEPS * self.clip
        return min(HEAD_BITS, 31 - _log2_ceiling(longest * max(self.clients, 10)))

    @cached_property
    def buffer_fraction(self) -> int:
        """Fraction bits of buffers, in their units."""
        return 31 - _log2_ceiling(5 * max(self.clients, 10) * self.buffer_limit)

    @property
    def buffer_limit(self) -> float:
        """The largest norm of the buffers' update, in units."""
        return self.buffer_clip * math.sqrt(max(1, self.buffers))

    @property
    def sketches(self) -> tuple[int, int]:
        """How many numbers the sketches of weights and of buffers have: 0 if there is none."""
        return SKETCH * (self.clip is not None and self.weights > 0), SKETCH * (self.buffers > 0)

    @cached_property
    def length_unit(self) -> int:
        """The square of clip / STEPS, in the head's squared units."""
        assert self.clip is not None
        unit = Fraction(self.clip) / STEPS * (1 << HEAD_BITS)
        return max(1, math.floor(unit * unit))


def _log2_ceiling(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    return exponent - (mantissa == 0.5)


def _check(holds: bool, needed: str, terms: Terms) -> None:
    if not holds:
        raise RefusedTerms(f"terms need {needed}, got {terms!r}")


def _typed(cls: type[Terms], table: dict[str, Any]) -> Terms:
    """Terms from a JSON table. Every value must have the exact type."""
    known = {field.name for field in fields(cls)}
    if set(table) != known:
        raise RefusedTerms(f"terms need the fields {sorted(known)}, got {sorted(map(str, table))}")
    whole = ("clients", "head", "weights", "buffers", "smallest", "quorum")
    kinds: dict[str, Any] = dict.fromkeys(whole, int) | {"threshold": str, "units": list}
    kinds |= {"deviations": float, "buffer_clip": float, "largest": float, "clip": (float, type(None))}
    kinds |= {"references": (int, type(None))}
    if type(table["mean"]) is not bool:
        raise RefusedTerms(f"terms: mean has the wrong type: {type(table['mean']).__name__}")
    for name, kind in kinds.items():
        if not isinstance(table[name], kind) or isinstance(table[name], bool):
            raise RefusedTerms(f"terms: {name} has the wrong type: {type(table[name]).__name__}")
    if not all(
        isinstance(unit, list) and len(unit) == 2 and all(type(v) is int for v in unit) for unit in table["units"]
    ):
        raise RefusedTerms("terms: units must be pairs of whole numbers")
    limit = table["norm_limit"]
    if limit is not None:
        names = {field.name: float for field in fields(NormLimitTerms)} | {"started": bool}
        if not isinstance(limit, dict) or set(limit) != set(names):
            raise RefusedTerms(f"terms: norm_limit needs the fields {sorted(names)}")
        if any(type(limit[name]) is not kind for name, kind in names.items()):
            raise RefusedTerms("terms: norm_limit has a value of the wrong type")
        limit = NormLimitTerms(**limit)
    return cls(**{**table, "units": tuple((size, e) for size, e in table["units"]), "norm_limit": limit})
