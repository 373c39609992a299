"""A defense judges clients, then combines what is left of their updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops import finite_rows, stays_finite
from .cohort import Cohort
from .parts import Aggregator, ClientHook, Filter, Need, Part, State


@dataclass(frozen=True)
class Verdict:
    """What a defense decided about every client of the round."""

    update: Float[Tensor, " d"]  # add this to the global parameters
    weights: Float[Tensor, " n"]  # how much each client counted; 0 = rejected
    evidence: Mapping[str, Float[Tensor, " n"]]  # scores by filter; NaN where it never saw the client
    skipped: str | None = None  # why the model stays as it is, if it does
    points: Mapping[str, Float[Tensor, "n 2"]] = field(default_factory=dict)  # pictures by filter; NaN likewise

    @classmethod
    def skip(
        cls,
        cohort: Cohort,
        why: str,
        evidence: Mapping[str, Tensor] | None = None,
        points: Mapping[str, Tensor] | None = None,
    ) -> Verdict:
        """Nobody counts and nothing moves."""
        nobody = cohort.weights.new_zeros(len(cohort))
        return cls(torch.zeros_like(cohort.params), nobody, evidence or {}, why, points or {})


@dataclass(frozen=True)
class Defense:
    """Filters, left to right, then one aggregator. A rejected client is not seen again this round.

    Hooks are what honest clients do while they train: the simulator runs them, a server cannot.
    """

    filters: tuple[Filter, ...]
    aggregator: Aggregator
    hooks: tuple[ClientHook, ...] = ()

    @property
    def needs(self) -> frozenset[Need]:
        """All that its parts need."""
        parts: tuple[Part | ClientHook, ...] = (*self.filters, self.aggregator, *self.hooks)
        return frozenset().union(*(part.needs for part in parts))

    def init(self) -> State:
        """What every part remembers before the first round."""
        return tuple(part.init() for part in (*self.filters, self.aggregator))

    def __call__(self, cohort: Cohort, state: State) -> tuple[Verdict, State]:
        everybody, evidence, points = cohort, dict[str, Tensor](), dict[str, Tensor]()
        cohort, standing = _without_rejected(_weighed(cohort, finite_rows(cohort.updates)), torch.arange(len(cohort)))
        received = cohort.updates
        *memories, last = state
        for i, part in enumerate(self.filters):
            cohort, standing = _without_rejected(cohort, standing)
            if len(cohort) == 0:
                break
            judgment, memories[i] = part(cohort, memories[i])
            label = _label(part, evidence)
            evidence[label] = _spread(judgment.scores, standing, everybody, fill=float("nan"))
            if judgment.points is not None:
                points[label] = _spread(judgment.points, standing, everybody, fill=float("nan"))
            if judgment.updates is not None:
                cohort = replace(cohort, updates=judgment.updates)
            cohort = _weighed(cohort, judgment.weights)
        if not bool((cohort.weights != 0).any()):
            why = "every client was rejected" if evidence else "no client sent finite numbers"
            return Verdict.skip(everybody, why, evidence, points), (*memories, last)
        if not self.aggregator.skips_rejected or cohort.updates is not received:  # rewritten rows may hold anything
            cohort, standing = _without_rejected(cohort, standing)
        update, last = self.aggregator(cohort, last)
        update = _keep_variances_positive(update, everybody)
        weights = _spread(cohort.weights, standing, everybody, fill=0.0)
        if not stays_finite(everybody.params, update):
            still = torch.zeros_like(update)
            return Verdict(still, weights, evidence, "the combined update is not finite", points), (*memories, last)
        return Verdict(update, weights, evidence, None, points), (*memories, last)


def _weighed(cohort: Cohort, weights: Float[Tensor, " n"] | Bool[Tensor, " n"]) -> Cohort:
    return replace(cohort, weights=cohort.weights * weights.to(cohort.weights.dtype))


def _without_rejected(cohort: Cohort, standing: Int[Tensor, " n"]) -> tuple[Cohort, Int[Tensor, " kept"]]:
    """Rejected rows are removed, never zeroed (a zero row attracts Krum)."""
    kept = cohort.weights != 0
    return cohort.only(kept), standing[kept.cpu()]


def _spread(
    values: Float[Tensor, "m *k"], rows: Int[Tensor, " m"], everybody: Cohort, fill: float
) -> Float[Tensor, "n *k"]:
    return values.new_full((len(everybody), *values.shape[1:]), fill).index_copy(0, rows.to(values.device), values)


def _keep_variances_positive(update: Float[Tensor, " d"], cohort: Cohort) -> Float[Tensor, " d"]:
    """A poisoned update may push BatchNorm's variance below zero, which no network survives."""
    if cohort.layout.variances:
        update = update.clone()
        for where in cohort.layout.variances:
            update[where] = torch.maximum(update[where], -cohort.params[where])
    return update


def _label(part: Filter, taken: Mapping[str, Any]) -> str:
    """The filter's name; a second one of its kind is told apart by a number."""
    name = type(part).__name__
    return name if name not in taken else f"{name} {sum(key.split()[0] == name for key in taken) + 1}"
