"""The rule of a round where updates are compared: filters that judge by the opened norms and cosines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Similarities, SimilarityFilter, State
from ..core.defense import label_filter
from ..core.verdict import scatter_rows
from .comparing_leader import Compared
from .comparison import VOTE
from .model import to_floats
from .projection import encode_reference
from .ring import Words
from .rule import refuse_opening
from .terms import Terms


@dataclass(frozen=True)
class OpenedSimilarities(Similarities):
    """Norms and cosines as they were opened."""

    params: Float[Tensor, " d"]
    lengths: Float[Tensor, " n"]
    matrix: Float[Tensor, "n n"]
    references: tuple[Tensor, ...]
    columns: Float[Tensor, "n r"]  # cosines with the references

    @classmethod
    def of(cls, params: Tensor, compared: Compared, references: tuple[Tensor, ...], terms: Terms) -> OpenedSimilarities:
        products = torch.from_numpy(compared.clients).double()
        norms = products.diagonal().clamp_min(0).sqrt()
        safe = torch.where(norms > 0, norms, 1)
        others = torch.tensor([float(square) for square in compared.squares], dtype=torch.float64).sqrt()
        with_others = torch.from_numpy(compared.references).double() / safe[:, None]
        with_others = with_others / torch.where(others > 0, others, 1)
        matrix = (products / safe[:, None] / safe).clamp(-1, 1)
        return cls(params, norms / 2.0**terms.fraction, matrix, references, with_others.clamp(-1, 1))

    def norms(self) -> Float[Tensor, " n"]:
        return self.lengths

    def cosines(self) -> Float[Tensor, "n n"]:
        return self.matrix

    def cosines_with(self, reference: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
        for i, known in enumerate(self.references):
            if known is reference or torch.equal(known, reference):
                return self.columns[:, i]
        raise ValueError("a filter may ask for cosines with the vectors of its list_references alone")

    def only(self, rows: Bool[Tensor, " n"]) -> OpenedSimilarities:
        return replace(self, lengths=self.lengths[rows], matrix=self.matrix[rows][:, rows], columns=self.columns[rows])

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
        evidence: The scores of each filter; NaN where it did not see the client.
        memories: What the filters remember.
        refused: Why the sum must not be opened, if so. Then all votes are 0.
    """

    votes: tuple[int, ...]
    weights: tuple[int, ...]
    evidence: Mapping[str, tuple[float, ...]]
    memories: tuple[State, ...]
    refused: str | None


@dataclass(frozen=True)
class ComparingRule:
    """Filters, what they remember at the start of the round, and its global model."""

    filters: tuple[SimilarityFilter, ...]
    memories: tuple[State, ...]
    params: Tensor

    @cached_property
    def references(self) -> tuple[Tensor, ...]:
        """The public vectors that updates are compared with."""
        pairs = zip(self.filters, self.memories, strict=True)
        return tuple(vector for part, memory in pairs for vector in part.list_references(self.params, memory))

    def encode_references(self, terms: Terms) -> Words:
        """As words of the weights, in rows."""
        rows = [encode_reference(to_floats(vector)) for vector in self.references]
        return np.array(rows, np.uint64).reshape(len(rows), terms.weights)

    def decide(self, compared: Compared, terms: Terms) -> Choice:
        """Run the filters, as `Defense.judge` does: rejected clients are not seen by the next one."""
        seen = OpenedSimilarities.of(self.params, compared, self.references, terms)
        n = len(compared.clients)
        rows, weights, factors = torch.arange(n), *torch.ones(2, n, dtype=torch.float64)
        memories, evidence = list(self.memories), dict[str, tuple[float, ...]]()
        for i, part in enumerate(self.filters):
            kept = weights[rows] > 0
            rows, seen = rows[kept], seen.only(kept)
            if not len(rows):
                break
            judgment, memories[i] = part.judge(seen, weights[rows], memories[i])
            scores = scatter_rows(judgment.scores.double(), rows, n, fill=float("nan"))
            evidence[label_filter(part, evidence)] = tuple(scores.tolist())
            weights[rows] *= judgment.weights.to(weights.dtype)
            if judgment.factors is not None:
                factors[rows] *= judgment.factors
                seen = seen.scale(judgment.factors)
        scaled = weights * factors
        largest = max(1.0, float(weights.max()), float(scaled.max()))  # a mean does not depend on the scale of weights
        votes, counted = _to_votes(weights / largest), _to_votes(scaled / largest)
        refused = refuse_opening(counted, terms)
        if refused is not None:
            return Choice((0,) * n, counted, evidence, self.memories, refused)
        return Choice(votes, counted, evidence, tuple(memories), None)

    def refuse(self, n: int, reason: str) -> Choice:
        """No rule is applied."""
        return Choice((0,) * n, (0,) * n, {}, self.memories, reason)


def _to_votes(weights: Float[Tensor, " n"]) -> tuple[int, ...]:
    """In units of 1 / `VOTE`. Whoever counts at all counts at least one unit."""
    return tuple(0 if weight <= 0 else max(1, round(weight * VOTE)) for weight in weights.tolist())
