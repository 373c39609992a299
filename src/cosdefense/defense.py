"""A defense judges clients, then combines what is left of their updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .cohort import Cohort
from .layout import Layout
from .ops import finite_rows, stays_finite

State = Any  # what a part remembers: None, numbers, tensors, tuples, dicts and frozen dataclasses of them
Loss = Callable[[Tensor, Tensor], Tensor]  # of a client's current parameters on images and labels


class Need(StrEnum):
    """What a part asks of a deployment beyond the updates of the round."""

    SERVER_DATA = "server data"
    CLIENT_DATA = "data of clients"
    ATTACKER_COUNT = "guess of attackers"
    CLIENT_MEMORY = "memory per client"
    FULL_PARTICIPATION = "full participation"
    COOPERATION = "code on clients"


@dataclass(frozen=True)
class Judgment:
    """What a filter thinks of each client it saw."""

    scores: Float[Tensor, " n"]  # the evidence, for the report: the higher, the more suspicious
    weights: Float[Tensor, " n"] | Bool[Tensor, " n"]  # how much each client should count; 0 = reject
    updates: Float[Tensor, "n d"] | None = None  # the rows rewritten, by filters that do
    points: Float[Tensor, "n 2"] | None = None  # where each client stands in a picture, by filters that draw one


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


class Part(ABC):
    """A piece of a defense: a frozen dataclass of hyper-parameters. What it remembers goes in and comes out."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def init(self) -> State:
        """What the part remembers before the first round."""
        return None


class Filter(Part):
    """Judges the clients of a round."""

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]: ...


class Aggregator(Part):
    """Combines the updates of a round into one."""

    # Rows of weight 0 do not count in it: rejected clients may stay in the cohort, which saves a copy of all others.
    skips_rejected: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]: ...


@dataclass(frozen=True)
class ClientHook:
    """The client's side of a defense: may change each batch before a step, and the parameters after it.

    Clients may train at the same time: an answer depends on the arguments, and on torch's global stream, alone.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.COOPERATION})

    def batch(
        self, loss: Loss, images: Float[Tensor, "b *shape"], labels: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b *shape"], Int[Tensor, " b"]]:
        """The batch to train on instead; `loss` is that of the parameters before the step."""
        return images, labels

    def step(
        self,
        params: Float[Tensor, " d"],
        gradient: Float[Tensor, " d"],
        previous: Float[Tensor, " d"] | None,
        layout: Layout,
        lr: float,
    ) -> Float[Tensor, " d"]:
        """The parameters to go on with; `previous` is the gradient of the step before, None at the first."""
        return params


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
