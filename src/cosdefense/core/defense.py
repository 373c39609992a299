"""A defense judges clients, then combines the updates of those that are left.

Special cases are handled here, once for all rules:

* A row with NaN or infinity is rejected before any filter runs.
* Rejected rows are removed between filters, never set to zero: a zero row attracts Krum. An aggregator that skips rows
  of weight 0 (the mean) gets them as they are, because removing rows means copying all others.
* Filters do not look at buffers (BatchNorm statistics), so that a client is accepted says nothing about its buffers.
  They are combined by the coordinate-wise median over all clients, rejected ones included: with Krum, one client would
  decide otherwise. It holds as long as most clients send honest ones.
* If nobody is left, or the combined update is not finite, the model does not change and `Verdict.skipped` says why.
* A rule with fewer clients than it needs raises `TooFewClients`. `run_round` turns that into a skipped round.
* No update pushes a tracked variance below zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..ops import finite_rows, surely_count
from .bare_updates import Array, from_row, to_rows
from .cohort import Cohort, TooFewClients
from .global_model import GlobalModel, StateDict
from .layout import Layout, UnknownLayer
from .parts import Aggregator, ClientHook, Filter, Need, Part, State, check_part, check_parts
from .similarities import RowSimilarities, SimilarityFilter
from .trusted_data import MissingTrustedData, TrustedData
from .verdict import Judged, Verdict, scatter_rows

BufferRule = Literal["median", "aggregator"]


@dataclass(frozen=True)
class Defense:
    """Filters, left to right, then one aggregator. A rejected client is not seen again this round.

    With a training loop of your own: `apply` for state_dicts, `aggregate` for bare updates. With a `Cohort`: call it.

    Args:
        filters: Judge the clients, in this order.
        aggregator: Combines the updates that are left.
        hooks: What honest clients do while they train: the simulator runs them, a server cannot.
        buffers: How buffers (BatchNorm statistics) and frozen parameters are combined. "median": the coordinate-wise
            median over all clients, unless a filter replaces them by the server's own (FLTrust, ByGARS).
            "aggregator": by the aggregator, as the weights of the model are. If that is a mean, an accepted client
            can move them anywhere.
    """

    filters: tuple[Filter, ...]
    aggregator: Aggregator
    hooks: tuple[ClientHook, ...] = ()
    buffers: BufferRule = "median"

    def __post_init__(self) -> None:
        check_parts("filters", self.filters, Filter)
        check_part("aggregator", self.aggregator, Aggregator)
        check_parts("hooks", self.hooks, ClientHook)
        if self.buffers not in get_args(BufferRule):
            raise ValueError(f"Defense.buffers must be one of {get_args(BufferRule)}, got {self.buffers!r}")

    @property
    def combines_buffers(self) -> bool:
        """Whether buffers are combined apart from the weights, by their median."""
        return self.buffers == "median" and not any(part.replaces_buffers for part in self.filters)

    @property
    def hides_updates(self) -> bool:
        """Whether clients must not send updates as they are. A server needs a helper for such a defense."""
        return False

    @property
    def options(self) -> dict[str, Any]:
        """What kinds of defenses with more than parts were given beside them (`cosdefense.secure.Secure`)."""
        return {}

    @property
    def rehearsal(self) -> Defense:
        """A defense that decides the same and costs less, if there is one: what adaptive attackers try out."""
        return self

    @property
    def needs(self) -> frozenset[Need]:
        """What its parts need of a deployment."""
        parts: tuple[Part | ClientHook, ...] = (*self.filters, self.aggregator, *self.hooks)
        return frozenset().union(*(part.needs for part in parts))

    def select_layers(self, layout: Layout) -> tuple[str, ...] | None:
        """The names of the tensors that the filters look at. None: all of them."""
        selected = [part.select_layers(layout) for part in self.filters]
        if not selected or None in selected:
            return None
        return tuple({name: None for names in selected for name in names or ()})

    def init(self) -> State:
        """What every part remembers before the first round."""
        return tuple(part.init() for part in (*self.filters, self.aggregator))

    def __call__(self, cohort: Cohort, state: State) -> tuple[Verdict, State]:
        """Judge, then combine. Raises `TooFewClients` where a rule has fewer clients than it needs."""
        judged, state = self.judge(cohort, state)
        return self.combine(judged, state)

    def run_round(self, cohort: Cohort, state: State, *, combine: bool = True) -> tuple[Judged, Verdict, State]:
        """Judge and combine; where a rule has too few clients, skip the round instead of raising an error.

        A skipped round leaves the memory as it was. Without `combine` the verdict's update is zero, and the caller
        combines `Judged.accepted`.
        """
        try:
            judged, after = self.judge(cohort, state)
            verdict, after = self.combine(judged, after) if combine else (judged.verdict(), after)
        except TooFewClients as problem:
            judged = Judged.skip(cohort, problem)
            return judged, judged.verdict(), state
        return judged, verdict, after

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        """Run the filters. Rows that are not finite are rejected before any filter runs."""
        received, evidence, points = cohort, dict[str, Tensor](), dict[str, Tensor]()
        cohort, rows = _drop_not_finite(cohort)
        finite, buffers = cohort.updates, cohort.buffers() if self.combines_buffers else None
        *memories, last = state
        rewritten, similarities, similar_rows = False, None, None
        for i, part in enumerate(self.filters):
            if i > 0:
                cohort, rows = _drop(cohort, rows, _find_remaining(cohort))
            if len(cohort) == 0:
                break
            if isinstance(part, SimilarityFilter):
                if similarities is None or similar_rows is not cohort.updates:
                    similarities, similar_rows = RowSimilarities(cohort.params, cohort.trainable()), cohort.updates
                judgment, memories[i] = part(cohort, memories[i], similarities)
            else:
                judgment, memories[i] = part(cohort, memories[i])
            label = label_filter(part, evidence)
            evidence[label] = scatter_rows(judgment.scores, rows, len(received), fill=float("nan"))
            if judgment.points is not None:
                points[label] = scatter_rows(judgment.points, rows, len(received), fill=float("nan"))
            if judgment.updates is not None:
                cohort, rewritten = replace(cohort, updates=judgment.updates), True
            cohort = _reweight(cohort, judgment.weights)
        skipped = None
        kept = _find_remaining(cohort)
        if not bool(kept.any()):
            skipped = "every client was rejected" if evidence else "no client sent finite numbers"
        elif not self.aggregator.skips_rejected or cohort.updates is not finite:  # rewritten rows may hold anything
            cohort, rows = _drop(cohort, rows, kept)
        judged = Judged(received, cohort, rows, evidence, points, skipped, rewritten=rewritten, buffers=buffers)
        return judged, (*memories, last)

    def combine(self, judged: Judged, state: State) -> tuple[Verdict, State]:
        """Run the aggregator on the remaining rows."""
        if judged.skipped is not None:
            return judged.verdict(), state
        *memories, last = state
        update, last = self.aggregator(judged.remaining, last)
        return judged.verdict(update), (*memories, last)

    @torch.no_grad()
    def apply(
        self,
        global_state_dict: nn.Module | StateDict,
        client_state_dicts: Sequence[nn.Module | StateDict],
        memory: State = None,
        *,
        clients: Sequence[int] | Tensor | None = None,
        weights: Sequence[float] | Tensor | None = None,
        head: str | None = None,
        seed: int = 0,
        trusted_data: TrustedData | None = None,
    ) -> tuple[dict[str, Tensor], Verdict, State]:
        """One round on state_dicts: the new global state_dict, the verdict, and the memory for the next round.

        The new state_dict has the keys, dtypes and devices of the old one. Integer buffers stay the server's, tied
        weights stay tied. Half precision is computed in float32. Modules are taken as well as state_dicts; a module
        also says which parameters are frozen, which then do not count in any score.

        Args:
            global_state_dict: The model that every client started from.
            client_state_dicts: The clients' models after training.
            memory: What the last round returned. None: the first round.
            clients: Whole numbers that identify the clients across rounds, for rules with memory per client.
                None: 0, 1, 2, … in the order of the list.
            weights: How much each client counts, such as numbers of samples that you can trust. None: all the same.
            head: The classifier's weight matrix, for rules that look at it. None: found as `Layout` describes.
            seed: For rules that draw at random. Give every round its own.
            trusted_data: Clean data at the server, for rules that need it.

        Raises:
            TooFewClients: A rule needs more clients.
            UnknownLayer: A rule looks at the classifier, and `head` must say which it is.
            MissingTrustedData: A rule needs clean data at the server.
        """
        self._refuse_hooks("apply")
        model = GlobalModel.of(global_state_dict, head)
        updates = model.updates(client_state_dicts)
        cohort = Cohort.of(
            updates,
            model.params,
            model.layout,
            None if clients is None else torch.as_tensor(clients),
            weights=None if weights is None else torch.as_tensor(weights),
            seed=seed,
            trusted_data=trusted_data,
        )
        verdict, memory = self(cohort, self.init() if memory is None else memory)
        return model.add(verdict.update), verdict, memory

    @overload
    def aggregate(
        self, updates: Tensor, *, weights: Sequence[float] | Tensor | None = ..., seed: int = ...
    ) -> Tensor: ...

    @overload
    def aggregate(
        self, updates: Sequence[Sequence[Array]], *, weights: Sequence[float] | Tensor | None = ..., seed: int = ...
    ) -> list[Array]: ...

    @torch.no_grad()
    def aggregate(
        self,
        updates: Tensor | Sequence[Sequence[Any]],
        *,
        weights: Sequence[float] | Tensor | None = None,
        seed: int = 0,
    ) -> Tensor | list[Any]:
        """Combine bare updates into one, without memory of other rounds. Nobody left: an update of zeros.

        Args:
            updates: A tensor of shape (n, d), or for each client a list of arrays or tensors.
            weights: How much each client counts. None: all the same.
            seed: For rules that draw at random. Give every round its own.

        Returns:
            The same kind: a tensor of shape (d,), or a list of arrays with their shapes and dtypes. Integer arrays
            come back as zeros.

        Raises:
            TooFewClients: A rule needs more clients.
            UnknownLayer: A rule looks at a layer of the global model: use `apply`.
            MissingTrustedData: A rule needs clean data at the server: use `apply`.
        """
        self._refuse_hooks("aggregate")
        rows = to_rows(updates)
        layout = Layout((("update", (rows.shape[1],)),), None, rows.shape[1])
        given = None if weights is None else torch.as_tensor(weights)
        cohort = Cohort.of(rows, rows.new_zeros(rows.shape[1]), layout, weights=given, seed=seed)
        try:
            verdict, _ = self(cohort, self.init())
        except (UnknownLayer, MissingTrustedData) as problem:
            raise type(problem)(
                f"{self} needs more than updates: use apply(global_state_dict, client_state_dicts, …)"
            ) from problem
        return from_row(verdict.update, updates if isinstance(updates, Tensor) else updates[0])

    def _refuse_hooks(self, method: str) -> None:
        if self.hooks:
            raise ValueError(
                f"{method} cannot run what clients do while they train: {self.hooks}. Run it in your training, "
                "and use Defense(filters, aggregator) here"
            )


def _reweight(cohort: Cohort, weights: Float[Tensor, " n"] | Bool[Tensor, " n"]) -> Cohort:
    return replace(cohort, weights=cohort.weights * weights.to(cohort.weights.dtype))


def _drop_not_finite(cohort: Cohort) -> tuple[Cohort, Int[Tensor, " kept"]]:
    """Remove rows that are not finite or have no weight. A round without any, as most are, waits for a GPU once."""
    rows = torch.arange(len(cohort))
    if surely_count(cohort.updates, cohort.weights):
        return cohort, rows
    cohort = _reweight(cohort, finite_rows(cohort.updates))
    return _drop(cohort, rows, _find_remaining(cohort))


def _find_remaining(cohort: Cohort) -> Bool[Tensor, " n"]:
    """Which rows were not rejected, in the memory of the CPU: a single wait for a GPU."""
    return (cohort.weights != 0).cpu()


def _drop(cohort: Cohort, rows: Int[Tensor, " n"], kept: Bool[Tensor, " n"]) -> tuple[Cohort, Int[Tensor, " kept"]]:
    """Rejected rows are removed, never zeroed (a zero row attracts Krum)."""
    return (cohort, rows) if bool(kept.all()) else (cohort.only(kept), rows[kept])


def label_filter(part: Filter, taken: Collection[str]) -> str:
    """The filter's name; the second filter of a kind gets a number."""
    name = type(part).__name__
    return name if name not in taken else f"{name} {sum(key.split()[0] == name for key in taken) + 1}"
