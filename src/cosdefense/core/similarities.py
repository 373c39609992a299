"""Filters that decide from norms and cosines alone, so that they can judge updates that nobody sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ..ops import cosine, cosines, rescale_rows, row_norms
from .cohort import Cohort
from .parts import Filter, Judgment, State


class Similarities(ABC):
    """What such a filter may know about a round: of the updates, buffers not included, only norms and cosines."""

    params: Float[Tensor, " d"]  # the global model that every client started from

    @abstractmethod
    def norms(self) -> Float[Tensor, " n"]: ...

    @abstractmethod
    def cosines(self) -> Float[Tensor, "n n"]:
        """Between every two updates, in float64; 0 where either is zero."""

    @abstractmethod
    def cosines_with(self, reference: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
        """Between every update and a vector that the filter named by `list_references`; 0 where either is zero."""

    def cosines_with_mean(self) -> Float[Tensor, " n"] | None:
        """Between every update and the running mean, for filters with `keeps_mean`. None: there is no mean yet."""
        return None


@dataclass(frozen=True, eq=False)
class RowSimilarities(Similarities):
    """From the updates themselves. Cosines are computed once: a round of many clients spends most of its time there."""

    params: Float[Tensor, " d"]
    rows: Float[Tensor, "n t"]

    def norms(self) -> Float[Tensor, " n"]:
        return row_norms(self.rows)

    def cosines(self) -> Float[Tensor, "n n"]:
        return self._cosines

    @cached_property
    def _cosines(self) -> Float[Tensor, "n n"]:
        return cosines(self.rows)

    def cosines_with(self, reference: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
        return cosine(self.rows, reference[: self.rows.shape[1]])


class SimilarityFilter(Filter):
    """A filter that writes its rule in `judge`, from similarities. `cosdefense.secure.Secure` can run it."""

    # Whether it shortens or rejects updates by their norm, so that clients need no fixed limit.
    limits_norms: ClassVar[bool] = False
    # Whether it compares updates with a running mean, which changes as `Judgment.teaching` says. In the open it keeps
    # that mean in `__call__`. `judge` gets the cosines alone: nobody may see the mean of secret updates.
    keeps_mean: ClassVar[bool] = False

    def list_references(self, params: Float[Tensor, " d"], state: State) -> tuple[Float[Tensor, " t"], ...]:
        """The vectors that the rule compares updates with: public ones. Trainable coordinates alone count."""
        return ()

    def get_typical_norm(self, state: State) -> float | None:
        """The norm of a typical update as far as the filter knows it, from which limits can be derived."""
        return None

    @abstractmethod
    def judge(self, similarities: Similarities, weights: Float[Tensor, " n"], state: State) -> tuple[Judgment, State]:
        """Scores, weights, and factors of the rows. `weights`: how much each client counts so far."""

    def __call__(
        self, cohort: Cohort, state: State, similarities: Similarities | None = None
    ) -> tuple[Judgment, State]:
        """Judge a cohort. `similarities`: those of its rows, if another filter looked at the same rows before."""
        similarities = similarities or RowSimilarities(cohort.params, cohort.trainable())
        judgment, state = self.judge(similarities, cohort.weights, state)
        if judgment.factors is not None:
            judgment = replace(judgment, updates=rescale_rows(cohort.updates, judgment.factors))
        return judgment, state
