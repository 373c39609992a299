"""A defense judges clients, then combines what is left of their updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .cohort import Cohort

State = Any  # what a part remembers: None, numbers, tensors, tuples, dicts and frozen dataclasses of them


@dataclass(frozen=True)
class Judgment:
    """What a filter thinks of each client it saw."""

    scores: Float[Tensor, " n"]  # the evidence, for the report: the higher, the more suspicious
    weights: Float[Tensor, " n"] | Bool[Tensor, " n"]  # how much each client should count; 0 = reject
    updates: Float[Tensor, "n d"] | None = None  # the rows rewritten, by filters that do


@dataclass(frozen=True)
class Verdict:
    """What a defense decided about every client of the round."""

    update: Float[Tensor, " d"]  # add this to the global parameters
    weights: Float[Tensor, " n"]  # how much each client counted; 0 = rejected
    evidence: Mapping[str, Float[Tensor, " n"]]  # scores by filter; NaN where it never saw the client
    skipped: str | None = None  # why the model stays as it is, if it does

    @classmethod
    def skip(cls, cohort: Cohort, why: str, evidence: Mapping[str, Tensor] | None = None) -> Verdict:
        """Nobody counts and nothing moves."""
        nobody = cohort.weights.new_zeros(len(cohort))
        return cls(torch.zeros_like(cohort.params), nobody, evidence or {}, why)


class Part(ABC):
    """A piece of a defense: a frozen dataclass of hyper-parameters. What it remembers goes in and comes out."""

    def init(self) -> State:
        """What the part remembers before the first round."""
        return None


class Filter(Part):
    """Judges the clients of a round."""

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]: ...


class Aggregator(Part):
    """Combines the updates of a round into one."""

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]: ...


@dataclass(frozen=True)
class Defense:
    """Filters, left to right, then one aggregator. A rejected client is not seen again this round."""

    filters: tuple[Filter, ...]
    aggregator: Aggregator

    def init(self) -> State:
        """What every part remembers before the first round."""
        return tuple(part.init() for part in (*self.filters, self.aggregator))

    def __call__(self, cohort: Cohort, state: State) -> tuple[Verdict, State]:
        everybody, evidence = cohort, dict[str, Tensor]()
        cohort, standing = _execute(cohort.updates.isfinite().all(dim=1), cohort, torch.arange(len(cohort)))
        *memories, last = state
        for i, part in enumerate(self.filters):
            if len(cohort) == 0:
                break
            judgment, memories[i] = part(cohort, memories[i])
            evidence[_label(part, evidence)] = _spread(judgment.scores, standing, everybody, fill=float("nan"))
            if judgment.updates is not None:
                cohort = replace(cohort, updates=judgment.updates)
            cohort, standing = _execute(judgment.weights, cohort, standing)
        if len(cohort) == 0:
            why = "every client was rejected" if evidence else "no client sent finite numbers"
            return Verdict.skip(everybody, why, evidence), (*memories, last)
        update, last = self.aggregator(cohort, last)
        update = _keep_variances_positive(update, everybody)
        weights = _spread(cohort.weights, standing, everybody, fill=0.0)
        if not bool((everybody.params + update).isfinite().all()):
            still = torch.zeros_like(update)
            return Verdict(still, weights, evidence, "the combined update is not finite"), (*memories, last)
        return Verdict(update, weights, evidence), (*memories, last)


def _execute(
    weights: Float[Tensor, " n"] | Bool[Tensor, " n"], cohort: Cohort, standing: Int[Tensor, " n"]
) -> tuple[Cohort, Int[Tensor, " kept"]]:
    """Apply a filter's weights: rejected rows are removed, never zeroed (a zero row attracts Krum)."""
    cohort = replace(cohort, weights=cohort.weights * weights.to(cohort.weights.dtype))
    kept = cohort.weights != 0
    return cohort.only(kept), standing[kept.cpu()]


def _spread(
    values: Float[Tensor, " m"], rows: Int[Tensor, " m"], everybody: Cohort, fill: float
) -> Float[Tensor, " n"]:
    return values.new_full((len(everybody),), fill).index_copy(0, rows.to(values.device), values)


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
