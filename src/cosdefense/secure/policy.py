"""What a helper agrees to, whatever the leader asks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .exchange import TicketRequest


class Refused(RuntimeError):
    """The helper does not do what it was asked. The message says why."""


@dataclass(frozen=True)
class Policy:
    """What a helper agrees to, whatever the leader asks.

    Args:
        smallest: The least `Terms.smallest`.
        quorum: The least `Terms.quorum`.
        max_clients: The most clients of a round.
        max_coordinates: The most coordinates of a model.
        max_settlements: How many sums it gives in a row on one model. The second is for a leader that lost the first:
            it, the helper or their connection failed after the settlement.
        norms: Whether norms of updates may be opened, which `NormLimit` needs.
        comparisons: Whether inner products of updates may be opened, which rules that compare clients need.
    """

    smallest: int = 3
    quorum: int = 3
    max_clients: int = 1000
    max_coordinates: int = 50_000_000
    max_settlements: int = 2
    norms: bool = False
    comparisons: bool = False

    def check(self, request: TicketRequest, n_nodes: int) -> None:
        """Refuse a request for a ticket that asks for more. `n_nodes`: how many nodes the roster has."""
        terms = request.terms
        for name, value, least in (
            ("smallest", terms.smallest, self.smallest),
            ("quorum", terms.quorum, self.quorum),
        ):
            if value < least:
                raise Refused(f"{name} must be at least {least} here, got {value}")
        if terms.clients > self.max_clients:
            raise Refused(f"at most {self.max_clients} clients are allowed here, got {terms.clients}")
        size = terms.head + terms.words
        if size > self.max_coordinates:
            raise Refused(f"at most {self.max_coordinates} coordinates are allowed here, got {size}")
        if terms.quorum > n_nodes:
            raise Refused(f"the quorum is {terms.quorum}, and the roster has {n_nodes} nodes")
        if terms.norm_limit is not None and not self.norms:
            raise Refused("norms of updates are not opened here, and NormLimit needs them")
        if terms.compares and not self.comparisons:
            raise Refused("inner products of updates are not opened here, and this rule needs them")
        if len(request.head) != 8 * terms.head or not np.isfinite(np.frombuffer(request.head, "<f8")).all():
            raise Refused(f"the global head needs {terms.head} finite numbers")
