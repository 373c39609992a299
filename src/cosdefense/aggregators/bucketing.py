"""Bucketing: average random groups of updates, then apply a robust rule to the averages.

Karimireddy, He, Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. ICLR 2022.
https://arxiv.org/abs/2006.09365
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from ..core import Aggregator, Cohort, Defense, Need, State, generator
from ..ops import mix_rows
from .median import Median


@dataclass(frozen=True)
class Bucketing(Aggregator):
    """Draw ceil(n / size) groups of `size` updates, average each of them, and apply a defense to the averages.

    The last group may be smaller. The averages differ less than the updates of clients with different data, so that a
    robust rule drops fewer of them. A malicious client spoils its group: of n / size averages as many may be malicious
    as there are malicious clients, so that a `contamination` of the defense must be `size` times as large, and less
    than half of the averages may be malicious. The groups are drawn by the seed and the identities of the clients.
    Weights are not used, and no client is rejected.

    Args:
        defense: The rule for the averages, by name or as a table: "krum", or { aggregator = { name = "median" } }. It
            must not remember clients, because an average has no identity.
        size: The number of updates in a group. The default is the paper's; 1 applies the defense to every update.
    """

    defense: Defense = Defense((), Median())
    size: int = 2

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"Bucketing.size must be at least 1, got {self.size}")
        by_client = self.defense.needs & {Need.CLIENT_MEMORY, Need.CLIENT_DATA, Need.COOPERATION}
        if by_client:
            raise ValueError(f"Bucketing.defense must not need {' or '.join(sorted(by_client))}: a group is no client")
        object.__setattr__(self, "needs", self.defense.needs)  # those of a part belong to its class elsewhere

    def init(self) -> State:
        return self.defense.init()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]:
        membership = self._draw_groups(cohort)
        averages = mix_rows(cohort.updates, membership / membership.sum(dim=1, keepdim=True))
        groups = replace(
            cohort,
            updates=averages,
            clients=torch.arange(len(averages), device=cohort.clients.device),
            weights=cohort.weights.new_ones(len(averages)),
        )
        verdict, state = self.defense(groups, state)
        return verdict.update, state

    def _draw_groups(self, cohort: Cohort) -> Float[Tensor, "groups n"]:
        """1 where a client is in a group. Clients are put in order first: the order of rows must not matter."""
        drawn = torch.randperm(len(cohort), generator=generator(cohort.seed, "bucketing"))
        place = drawn.to(cohort.clients.device)[cohort.clients.argsort().argsort()]
        return one_hot(place // self.size).T.double()
