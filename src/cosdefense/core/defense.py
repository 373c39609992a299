"""A defense judges clients, then combines what is left of their updates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..ops import finite_rows
from .cohort import Cohort, TooFewClients
from .parts import Aggregator, ClientHook, Filter, Need, Part, State
from .verdict import Judged, Verdict, scatter_rows


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
        """Judge, then combine. Raises `TooFewClients` where a rule has fewer clients than it needs."""
        judged, state = self.judge(cohort, state)
        return self.combine(judged, state)

    def run_round(self, cohort: Cohort, state: State, *, combine: bool = True) -> tuple[Judged, Verdict, State]:
        """A round of a federation: too few clients for a rule skip it instead of ending the run.

        Without `combine` the verdict's update is zero: the caller combines what `Judged.accepted` holds.
        """
        try:
            judged, after = self.judge(cohort, state)
            verdict, after = self.combine(judged, after) if combine else (judged.verdict(), after)
        except TooFewClients as problem:
            judged = Judged.skip(cohort, problem)
            return judged, judged.verdict(), state
        return judged, verdict, after

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        """Ask the filters. Rows that are not finite are rejected before any filter runs."""
        received, evidence, points = cohort, dict[str, Tensor](), dict[str, Tensor]()
        cohort, rows = _drop_rejected(_reweight(cohort, finite_rows(cohort.updates)), torch.arange(len(cohort)))
        finite = cohort.updates
        *memories, last = state
        for i, part in enumerate(self.filters):
            cohort, rows = _drop_rejected(cohort, rows)
            if len(cohort) == 0:
                break
            judgment, memories[i] = part(cohort, memories[i])
            label = _label(part, evidence)
            evidence[label] = scatter_rows(judgment.scores, rows, len(received), fill=float("nan"))
            if judgment.points is not None:
                points[label] = scatter_rows(judgment.points, rows, len(received), fill=float("nan"))
            if judgment.updates is not None:
                cohort = replace(cohort, updates=judgment.updates)
            cohort = _reweight(cohort, judgment.weights)
        skipped = None
        if not bool((cohort.weights != 0).any()):
            skipped = "every client was rejected" if evidence else "no client sent finite numbers"
        elif not self.aggregator.skips_rejected or cohort.updates is not finite:  # rewritten rows may hold anything
            cohort, rows = _drop_rejected(cohort, rows)
        return Judged(received, cohort, rows, evidence, points, skipped), (*memories, last)

    def combine(self, judged: Judged, state: State) -> tuple[Verdict, State]:
        """Combine what is left into one update."""
        if judged.skipped is not None:
            return judged.verdict(), state
        *memories, last = state
        update, last = self.aggregator(judged.remaining, last)
        return judged.verdict(update), (*memories, last)


def _reweight(cohort: Cohort, weights: Float[Tensor, " n"] | Bool[Tensor, " n"]) -> Cohort:
    return replace(cohort, weights=cohort.weights * weights.to(cohort.weights.dtype))


def _drop_rejected(cohort: Cohort, rows: Int[Tensor, " n"]) -> tuple[Cohort, Int[Tensor, " kept"]]:
    """Rejected rows are removed, never zeroed (a zero row attracts Krum)."""
    kept = cohort.weights != 0
    return cohort.only(kept), rows[kept.cpu()]


def _label(part: Filter, taken: Collection[str]) -> str:
    """The filter's name; the second filter of a kind gets a number."""
    name = type(part).__name__
    return name if name not in taken else f"{name} {sum(key.split()[0] == name for key in taken) + 1}"
