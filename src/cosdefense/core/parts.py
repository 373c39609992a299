"""The parts that a defense is made of: filters, an aggregator, and hooks that honest clients run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from .cohort import Cohort
from .layout import Layout

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
    INFERENCE = "inference at the server"


@dataclass(frozen=True)
class Teaching:
    """How a round changes the running mean of updates that a filter keeps.

    Args:
        shares: What the rows are multiplied by in the mean of this round.
        kept: How much of the running mean is kept; the mean of this round gets the rest. 0: it starts again.
    """

    shares: Float[Tensor, " n"]
    kept: float


@dataclass(frozen=True)
class Judgment:
    """What a filter decided about each client of a cohort.

    Args:
        scores: The evidence, for the report: the higher, the more suspicious.
        weights: How much each client should count; 0 = reject.
        updates: The rows to use instead. None: the rows stay as they are.
        points: The position of each client in a picture, from filters that make one.
        factors: What each row was multiplied by, if that is all that a filter did to rows.
        teaching: What the running mean learns, from filters that keep one. None: it stays as it is.
    """

    scores: Float[Tensor, " n"]
    weights: Float[Tensor, " n"] | Bool[Tensor, " n"]
    updates: Float[Tensor, "n d"] | None = None
    points: Float[Tensor, "n 2"] | None = None
    factors: Float[Tensor, " n"] | None = None
    teaching: Teaching | None = None


class Part(ABC):
    """A piece of a defense: a frozen dataclass of hyper-parameters. Its memory is passed in and returned."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    def init(self) -> State:
        """What the part remembers before the first round."""
        return None


class Filter(Part):
    """Judges the clients of a round.

    The order of rows carries no information: a filter is permutation-equivariant, and ties do not depend on position.
    Where all scores are equal there is no outlier, and most filters accept everybody. Filters that measure trust may
    reject everybody.
    """

    # Whether the buffers of the rows it returns are the server's own, and not those that clients sent.
    replaces_buffers: ClassVar[bool] = False

    def select_layers(self, layout: Layout) -> tuple[str, ...] | None:
        """The names of the tensors that the filter looks at. None: all of them.

        A filter that names tensors must decide from these alone and must not rewrite rows: a server that only needs
        its verdict may pass a cohort without the other tensors, which saves nearly all memory.
        """
        return None

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]: ...


class Aggregator(Part):
    """Combines the updates of a round into one."""

    # Whether rows of weight 0 have no influence. Then rejected rows may stay in the cohort, which saves a copy.
    skips_rejected: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> tuple[Float[Tensor, " d"], State]: ...


@dataclass(frozen=True)
class ClientHook:
    """The client's side of a defense: it may change batches before a step, parameters after it, and what is sent.

    Clients may train at the same time: a result may depend on the arguments and on torch's global generator only.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.COOPERATION})
    # Whether `send` changes the update. Only then it is called, and clients remember something between rounds.
    keeps_memory: ClassVar[bool] = False

    def check_data(self, inputs: Tensor, targets: Tensor, n_classes: int) -> None:
        """Refuse samples that the hook was not made for, by an `UnsuitableData`. Called once, before the first round.

        Args:
            inputs: Those of all training samples: bytes are pixels, and reach `batch` as numbers in [0, 1].
            targets: Their classes or values.
            n_classes: The number of classes. 0: the targets are values.
        """

    def batch(
        self, loss: Loss, images: Shaped[Tensor, "b *shape"], labels: Shaped[Tensor, "b *targets"]
    ) -> tuple[Shaped[Tensor, "b *shape"], Shaped[Tensor, "b *targets"]]:
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
        """The parameters to continue with; `previous` is the gradient of the step before, None at the first."""
        return params

    def send(
        self, update: Float[Tensor, " d"], memory: Float[Tensor, " d"] | None, layout: Layout
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """What the client sends, and what it remembers; `memory` is that of its last round, None in its first."""
        raise NotImplementedError(f"{type(self).__name__}.keeps_memory is set: it must implement send")


def check_parts(name: str, parts: Any, kind: type) -> None:
    """Refuse what is not a tuple of such parts, and say how to write it."""
    if not isinstance(parts, tuple):
        given = parts if isinstance(parts, type) else type(parts)
        example = given.__name__ if issubclass(given, kind) else f"My{kind.__name__}"
        raise TypeError(
            f"Defense.{name} must be a tuple, got {given.__name__}: write a single one with a comma, ({example}(...),)"
        )
    for i, part in enumerate(parts):
        check_part(f"{name}[{i}]", part, kind)


def check_part(where: str, part: Any, kind: type) -> None:
    """Refuse what is not such a part, and say how to write it."""
    if isinstance(part, type):
        raise TypeError(f"Defense.{where} must be of kind {kind.__name__}, got a class: write {part.__name__}(...)")
    if not isinstance(part, kind):
        raise TypeError(
            f"Defense.{where} must be of kind {kind.__name__}, got {type(part).__name__}. "
            "The order is Defense((Filter(), ...), Aggregator(), (ClientHook(), ...))"
        )
