"""What a defense decided: after its filters (`Judged`), and at the end of the round (`Verdict`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..ops import median, stays_finite, upload
from .cohort import Cohort, TooFewClients


@dataclass(frozen=True)
class Verdict:
    """What a defense decided about every client of the round.

    Args:
        update: The combined update, to be added to the global parameters.
        weights: How much each client counted; 0 = rejected.
        evidence: Scores by filter; NaN where a filter did not see the client.
        skipped: Why the model does not change in this round, if so.
        points: Positions in a picture by filter, from filters that make one; NaN where a filter did not see the client.
    """

    update: Float[Tensor, " d"]
    weights: Float[Tensor, " n"]
    evidence: Mapping[str, Float[Tensor, " n"]]
    skipped: str | None = None
    points: Mapping[str, Float[Tensor, "n 2"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A round after the filters, before the updates are combined.

    Args:
        received: All clients, with the updates that they sent.
        remaining: What the aggregator gets. Filters may have rewritten rows. Rows of weight 0 are rejected.
        rows: The positions of the remaining rows among the received ones.
        evidence: As in `Verdict`.
        points: As in `Verdict`.
        skipped: Why there is nothing to combine, if so.
        too_few_clients: Whether that is because a rule has fewer clients than it needs.
        rewritten: Whether a filter has rewritten rows. Otherwise the remaining rows are those that were received.
        buffers: The buffers of all clients that sent finite numbers, to be combined by their median. None: the
            aggregator combines them.
    """

    received: Cohort
    remaining: Cohort
    rows: Int[Tensor, " m"]
    evidence: Mapping[str, Float[Tensor, " n"]]
    points: Mapping[str, Float[Tensor, "n 2"]]
    skipped: str | None = None
    too_few_clients: bool = False
    rewritten: bool = False
    buffers: Float[Tensor, "k b"] | None = None

    @classmethod
    def skip(cls, cohort: Cohort, problem: TooFewClients) -> Judged:
        """A round with too few clients for a rule: all weights are 0 and the model does not change."""
        nobody = torch.zeros(len(cohort), dtype=torch.bool, device=cohort.updates.device)
        return cls(cohort, cohort.only(nobody), torch.arange(0), {}, {}, str(problem), too_few_clients=True)

    @property
    def accepted(self) -> Cohort:
        """The clients that count, with their final weights and rows."""
        return self.remaining.only(self.remaining.weights != 0)

    def combine_buffers(self) -> Float[Tensor, " b"] | None:
        """The update of the buffers. None: there are none, or the aggregator combines them."""
        return None if self.buffers is None or not self.buffers.numel() else median(self.buffers)

    def _replace_buffers(self, update: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        buffers = self.combine_buffers()
        return update if buffers is None else torch.cat([update[: self.received.layout.n_trainable], buffers])

    def verdict(self, update: Float[Tensor, " d"] | None = None) -> Verdict:
        """The verdict, given the combined update. None: another program combines, and the update is zero here."""
        weights = scatter_rows(self.remaining.weights, self.rows, len(self.received), fill=0.0)
        skipped = self.skipped
        if skipped is None and update is not None:
            update = _keep_variances_positive(self._replace_buffers(update), self.received)
            if not stays_finite(self.received.params, update):
                skipped = "the combined update is not finite"
        if skipped is not None or update is None:
            update = torch.zeros_like(self.received.params)
        return Verdict(update, weights, self.evidence, skipped, self.points)


def scatter_rows(values: Float[Tensor, "m *k"], rows: Int[Tensor, " m"], n: int, fill: float) -> Float[Tensor, "n *k"]:
    """A table of `n` rows with these values in these rows, which ascend, and `fill` in all others."""
    if len(rows) == n:
        return values.clone()
    return values.new_full((n, *values.shape[1:]), fill).index_copy(0, upload(rows, values.device), values)


def _keep_variances_positive(update: Float[Tensor, " d"], cohort: Cohort) -> Float[Tensor, " d"]:
    """A poisoned update may push BatchNorm's variance below zero, and the network would compute NaN."""
    if cohort.layout.variances:
        update = update.clone()
        for where in cohort.layout.variances:
            update[where] = torch.maximum(update[where], -cohort.params[where])
    return update
