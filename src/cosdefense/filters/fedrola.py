"""FedRoLA: clients whose updates are too similar in several layers lose reputation.

Yan, Wang, Yuan, Li. FedRoLA: Robust Federated Learning Against Model Poisoning via Layer-based Aggregation. KDD 2024.

This is the rule that the authors' code has in effect. There the threshold starts at 0.9 and is lowered while half of
the clients or more exceed it, which can never succeed. The paper's rule for the threshold could not be confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, generator
from ..ops import compute_dtype, cosine, cosines, weighted_sum

Similarity = Literal["mean", "pairs"]
RATE = 0.1  # how fast the weight of suspicious clients returns over the rounds


@dataclass(frozen=True)
class FedRoLA(Filter):
    """Weight every client by its record α / (α + β): the rounds in which it was not suspicious among all its rounds.

    In every round a few tensors are drawn, more often those that were useful before. In each, clients are flagged whose
    similarity is at least `threshold`, unless that is half of the clients or more. Suspicious are the clients that all
    tensors flag; if there are none, those that one tensor less flags, and so on. Their weight in round t is multiplied
    by 2 / (1 + exp(−0.1 t)) − 1. The score is the share of tensors that flag a client. Made for malicious clients that
    send the same update. A single one, or several that differ, pass; honest clients that agree are flagged.

    Args:
        threshold: The similarity from which a client is flagged.
        layers: How many tensors are drawn.
        similarity: "mean": the cosine with the mean update. "pairs": the mean of the two largest cosines with others.
        capacity: How many clients are remembered.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY})

    threshold: float = 0.9
    layers: int = 3
    similarity: Similarity = "mean"
    capacity: int = 10_000

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"FedRoLA.threshold must be in [-1, 1], got {self.threshold}")
        for name in ("layers", "capacity"):
            if getattr(self, name) < 1:
                raise ValueError(f"FedRoLA.{name} must be at least 1, got {getattr(self, name)}")
        if self.similarity not in get_args(Similarity):
            raise ValueError(f"FedRoLA.similarity must be one of {get_args(Similarity)}, got {self.similarity!r}")

    def init(self) -> tuple[ClientTable, dict[str, tuple[int, int]], int]:
        return ClientTable.empty(), {}, 0  # α and β of every client; uses and draws of every tensor; rounds

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        table, history, number = state
        drawn = self._draw_layers(cohort, history)
        flags = torch.stack([self._flag(cohort, name) for name in drawn])
        useful = flags.any(dim=1).tolist()
        before = {name: history.get(name, (1, 1)) for name in drawn}
        after = {name: (before[name][0] + used, before[name][1] + 1) for name, used in zip(drawn, useful, strict=True)}
        votes = flags.sum(dim=0)
        suspicious = (votes == votes.max()) & (votes > 0)
        record = table.lookup(cohort.clients, default=cohort.weights.new_ones(len(cohort), 2))
        record = record + torch.stack([~suspicious, suspicious], dim=1)
        recovered = 2 / (1 + math.exp(-RATE * number)) - 1
        weights = record[:, 0] / record.sum(dim=1) * torch.where(suspicious, recovered, 1.0)
        table = table.with_rows(cohort.clients, record, self.capacity)
        judgment = Judgment(votes.double() / len(drawn), weights.to(cohort.weights.dtype))
        return judgment, (table, {**history, **after}, number + 1)

    def _draw_layers(self, cohort: Cohort, history: dict[str, tuple[int, int]]) -> list[str]:
        names = cohort.layout.trainable
        useful, draws = torch.tensor([history.get(name, (1, 1)) for name in names], dtype=torch.float64).T
        rng = generator(cohort.seed, "fedrola")
        chosen = torch.multinomial(useful / draws, min(self.layers, len(names)), generator=rng)
        return [names[i] for i in sorted(chosen.tolist())]

    def _flag(self, cohort: Cohort, name: str) -> Bool[Tensor, " n"]:
        too_similar = similarities(cohort.layer(name)[0], self.similarity) >= self.threshold
        return too_similar & (2 * too_similar.sum() < len(cohort))


def similarities(rows: Float[Tensor, "n k"], kind: Similarity) -> Float[Tensor, " n"]:
    """Of every row with the mean of all, or with the two rows most similar to it."""
    if kind == "mean" or len(rows) < 3:
        share = torch.full((len(rows),), 1 / len(rows), dtype=compute_dtype(rows.dtype), device=rows.device)
        return cosine(rows, weighted_sum(rows, share, share.dtype))
    return cosines(rows).fill_diagonal_(-1).topk(2, dim=1).values.mean(dim=1)
