"""What a defense decided: after its filters (`Judged`), and at the end of the round (`Verdict`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..ops import stays_finite
from .cohort import Cohort, TooFewClients


@dataclass(frozen=True)
class Verdict:
    """What a defense decided about every client of the round."""

    update: Float[Tensor, " d"]  # add this to the global parameters
    weights: Float[Tensor, " n"]  # how much each client counted; 0 = rejected
    evidence: Mapping[str, Float[Tensor, " n"]]  # scores by filter; NaN where it never saw the client
    skipped: str | None = None  # why the model stays as it is, if it does
    points: Mapping[str, Float[Tensor, "n 2"]] = field(default_factory=dict)  # pictures by filter; NaN likewise


@dataclass(frozen=True)
class Judged:
    """A round after the filters, before its updates are combined."""

    received: Cohort  # everybody, as they came
    remaining: Cohort  # what the filters left: rows may be rewritten; a row of weight 0 is rejected
    rows: Int[Tensor, " m"]  # where the remaining rows stand among the received ones
    evidence: Mapping[str, Float[Tensor, " n"]]  # as in Verdict
    points: Mapping[str, Float[Tensor, "n 2"]]  # as in Verdict
    skipped: str | None = None  # why there is nothing to combine, if so
    too_few_clients: bool = False  # a rule had fewer clients than it needs

    @classmethod
    def skip(cls, cohort: Cohort, problem: TooFewClients) -> Judged:
        """A round that a rule could not judge or combine: nobody counts and nothing moves."""
        nobody = torch.zeros(len(cohort), dtype=torch.bool, device=cohort.updates.device)
        return cls(cohort, cohort.only(nobody), torch.arange(0), {}, {}, str(problem), too_few_clients=True)

    @property
    def accepted(self) -> Cohort:
        """The clients that count, with their final weights and rows."""
        return self.remaining.only(self.remaining.weights != 0)

    def verdict(self, update: Float[Tensor, " d"] | None = None) -> Verdict:
        """The verdict, given the combined update. None: somebody else combines, and nothing moves here."""
        still = torch.zeros_like(self.received.params)
        weights = scatter_rows(self.remaining.weights, self.rows, len(self.received), fill=0.0)
        if self.skipped is not None or update is None:
            return Verdict(still, weights, self.evidence, self.skipped, self.points)
        update = _keep_variances_positive(update, self.received)
        if not stays_finite(self.received.params, update):
            return Verdict(still, weights, self.evidence, "the combined update is not finite", self.points)
        return Verdict(update, weights, self.evidence, None, self.points)


def scatter_rows(values: Float[Tensor, "m *k"], rows: Int[Tensor, " m"], n: int, fill: float) -> Float[Tensor, "n *k"]:
    """A table of `n` rows with these values in these rows, and `fill` in all others."""
    return values.new_full((n, *values.shape[1:]), fill).index_copy(0, rows.to(values.device), values)


def _keep_variances_positive(update: Float[Tensor, " d"], cohort: Cohort) -> Float[Tensor, " d"]:
    """A poisoned update may push BatchNorm's variance below zero, which no network survives."""
    if cohort.layout.variances:
        update = update.clone()
        for where in cohort.layout.variances:
            update[where] = torch.maximum(update[where], -cohort.params[where])
    return update
