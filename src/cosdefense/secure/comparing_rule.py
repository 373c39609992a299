"""The rule of a round where updates are compared: filters that judge by the opened norms and cosines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..aggregators.tapered_mean import NormMemory, Tapered, TaperedMean
from ..core import Similarities, SimilarityFilter, State
from ..core.defense import label_filter
from ..core.verdict import scatter_rows
from .comparing_leader import Compared
from .comparison import VOTE
from .model import to_floats
from .projection import encode_reference
from .ring import Words
from .rule import refuse_opening
from .secret_mean import Lesson, plan_lesson
from .shared_mean import SharedMean
from .terms import Terms


@dataclass(frozen=True)
class OpenedSimilarities(Similarities):
    """Norms and cosines as they were opened."""

    params: Float[Tensor, " d"]
    lengths: Float[Tensor, " n"]
    matrix: Float[Tensor, "n n"]
    references: tuple[Tensor, ...]
    columns: Float[Tensor, "n r"]  # cosines with the references
    column: Float[Tensor, " n"] | None = None  # cosines with the running mean

    @classmethod
    def of(cls, params: Tensor, compared: Compared, references: tuple[Tensor, ...], terms: Terms) -> OpenedSimilarities:
        products = torch.from_numpy(compared.clients).double()
        norms = products.diagonal().clamp_min(0).sqrt()
        safe = torch.where(norms > 0, norms, 1)
        others = torch.tensor([float(square) for square in compared.squares], dtype=torch.float64).sqrt()
        with_others = torch.from_numpy(compared.references).double() / safe[:, None]
        with_others = with_others / torch.where(others > 0, others, 1)
        matrix = (products / safe[:, None] / safe).clamp(-1, 1)
        column = None
        if compared.mean is not None:
            with_mean = torch.tensor([float(product) for product in compared.mean.clients], dtype=torch.float64)
            column = (with_mean / safe / (math.sqrt(compared.mean.square) or 1.0)).clamp(-1, 1)
        return cls(params, norms / 2.0**terms.fraction, matrix, references, with_others.clamp(-1, 1), column)

    def norms(self) -> Float[Tensor, " n"]:
        return self.lengths

    def cosines(self) -> Float[Tensor, "n n"]:
        return self.matrix

    def cosines_with(self, reference: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
        for i, known in enumerate(self.references):
            if known is reference or torch.equal(known, reference):
                return self.columns[:, i]
        raise ValueError("a filter may ask for cosines with the vectors of its list_references alone")

    def cosines_with_mean(self) -> Float[Tensor, " n"] | None:
        return self.column

    def only(self, rows: Bool[Tensor, " n"]) -> OpenedSimilarities:
        matrix, column = self.matrix[rows][:, rows], None if self.column is None else self.column[rows]
        return replace(self, lengths=self.lengths[rows], matrix=matrix, columns=self.columns[rows], column=column)

    def scale(self, factors: Float[Tensor, " n"]) -> OpenedSimilarities:
        """After every update was multiplied by a factor above 0."""
        return replace(self, lengths=self.lengths * factors)


@dataclass(frozen=True)
class Choice:
    """What the filters decided about the valid reports.

    Args:
        votes: How much each client counts, in units of 1 / `VOTE`.
        weights: The same, times the factor by which its update is shortened: what its half is multiplied by, if the
            sum may be opened.
        divisor: What the sum is divided by.
        evidence: The scores of each filter; NaN where it did not see the client.
        memories: What the filters remember.
        refused: Why the sum must not be opened, if so. Then all votes are 0.
        lesson: What the running mean learns, if there is one.
        total: What the integers of the running mean then add up to.
        tapered: How updates counted by their norms, if the aggregator asks for that.
    """

    votes: tuple[int, ...]
    weights: tuple[int, ...]
    divisor: float
    evidence: Mapping[str, tuple[float, ...]]
    memories: tuple[State, ...]
    refused: str | None
    lesson: Lesson | None = None
    total: float = 0.0
    tapered: Tapered | None = None


@dataclass(frozen=True)
class ComparingRule:
    """Filters, what they remember at the start of the round, and its global model.

    Args:
        filters: Those that compare updates.
        memories: What each remembers.
        params: The global model.
        mean: The running mean that one of them keeps.
        tapering: The aggregator, if updates count by their norms in it, and what it remembers.
    """

    filters: tuple[SimilarityFilter, ...]
    memories: tuple[State, ...]
    params: Tensor
    mean: SharedMean | None = None
    tapering: tuple[TaperedMean, NormMemory] | None = None

    @cached_property
    def references(self) -> tuple[Tensor, ...]:
        """The public vectors that updates are compared with."""
        pairs = zip(self.filters, self.memories, strict=True)
        return tuple(vector for part, memory in pairs for vector in part.list_references(self.params, memory))

    def encode_references(self, terms: Terms) -> Words:
        """As words of the weights, in rows."""
        rows = [encode_reference(to_floats(vector[: terms.weights])) for vector in self.references]
        return np.array(rows, np.uint64).reshape(len(rows), terms.weights)

    def decide(self, compared: Compared, terms: Terms) -> Choice:
        """Run the filters, as `Defense.judge` does: rejected clients are not seen by the next one."""
        first = seen = OpenedSimilarities.of(self.params, compared, self.references, terms)
        n = len(compared.clients)
        rows, weights, factors = torch.arange(n), *torch.ones(2, n, dtype=torch.float64)
        memories, evidence = list(self.memories), dict[str, tuple[float, ...]]()
        lesson, total = None, 0.0 if self.mean is None else self.mean.total
        for i, part in enumerate(self.filters):
            kept = weights[rows] > 0
            rows, seen = rows[kept], seen.only(kept)
            if not len(rows):
                break
            judgment, memories[i] = part.judge(seen, weights[rows], memories[i])
            scores = scatter_rows(judgment.scores.double(), rows, n, fill=float("nan"))
            evidence[label_filter(part, evidence)] = tuple(scores.tolist())
            if judgment.teaching is not None:
                shares = scatter_rows(judgment.teaching.shares.double() * factors[rows], rows, n, fill=0.0).tolist()
                kept, exists = judgment.teaching.kept, compared.mean is not None
                lesson, total = plan_lesson(total, shares, kept, terms.fraction, exists=exists)
            weights[rows] *= judgment.weights.to(weights.dtype)
            if judgment.factors is not None:
                factors[rows] *= judgment.factors
                seen = seen.scale(judgment.factors)
        tapered = self._taper(first.lengths * factors, weights)
        most = max(1.0, float(weights.max()))
        if tapered is None:
            scaled = weights * factors
            largest = max(most, float(scaled.max()))  # a mean does not depend on the scale of weights
            votes, counted = _to_votes(weights / largest), _to_votes(scaled / largest)
            divisor = float(sum(votes))
        else:
            scaled = tapered.shares * factors
            largest = float(scaled.max())
            votes, counted, divisor = _to_votes(weights / most), _to_votes(scaled / largest), VOTE / largest
        refused = refuse_opening(counted, terms)
        if refused is not None:
            return Choice((0,) * n, counted, 1.0, evidence, self.memories, refused)
        return Choice(votes, counted, divisor, evidence, tuple(memories), None, lesson, total, tapered)

    def _taper(self, norms: Float[Tensor, " n"], weights: Float[Tensor, " n"]) -> Tapered | None:
        if self.tapering is None:
            return None
        aggregator, memory = self.tapering
        return aggregator.taper_rows(norms, weights, memory)

    def refuse(self, n: int, reason: str) -> Choice:
        """No rule is applied."""
        return Choice((0,) * n, (0,) * n, 1.0, {}, self.memories, reason)


def _to_votes(weights: Float[Tensor, " n"]) -> tuple[int, ...]:
    """In units of 1 / `VOTE`. Whoever counts at all counts at least one unit."""
    return tuple(0 if weight <= 0 else max(1, round(weight * VOTE)) for weight in weights.tolist())
