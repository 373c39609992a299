"""A helper that also lets updates be compared with each other, for rules that need their inner products.

It learns who counts how much, and nothing about the inner products: these are opened to the leader, which applies the
rule. It trusts the leader's weights, within the conditions of every opening. Where the rule keeps a running mean, it
has a half of that, on disk. See docs/secure.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .comparison import VOTE, Masked, Products, Projected, Weights
from .exchange import Checks, Outcome, Settled
from .helper import Helper, compare
from .mean_store import MeanStore
from .policy import Policy, Refused
from .projection import project
from .ring import Words
from .rule import refuse_count, refuse_opening
from .secret_mean import Lesson, learn, project_mean
from .streams import KEY, digest
from .terms import MEAN_ROWS
from .triples import NoTriple, TripleHalf, TripleStock, multiply


@dataclass(repr=False)
class _Comparison:
    """What belongs to the current round beside its reports."""

    answers: bytes  # digest of the leader's
    projected: Projected
    secret: tuple[Words, TripleHalf] | None  # the helper's half of the projections, and of the triple; None: used
    masked: bytes | None = None  # digest of the leader's
    products: Products | None = None


class ComparingHelper(Helper):
    """The steps of `Helper`, with three in place of the last: project, multiply, settle by weights.

    Args:
        identity: As for `Helper`.
        roster: As for `Helper`.
        policy: As for `Helper`; with `comparisons`.
        state_path: As for `Helper`.
        triples: The helper's halves.
        draw_key: Draws the key of a round's projection, for simulations that repeat it.
        means: Where its half of a running mean is kept. None: beside the state.
    """

    def __init__(
        self,
        identity: Ed25519PrivateKey,
        roster: Collection[bytes],
        policy: Policy,
        state_path: Path | None = None,
        *,
        triples: TripleStock,
        draw_key: Callable[[], bytes] = lambda: os.urandom(KEY),
        means: MeanStore | None = None,
    ) -> None:
        super().__init__(identity, roster, policy, state_path)
        self._triples, self._draw_key, self._means = triples, draw_key, means or MeanStore(state_path)
        self._comparison: _Comparison | None = None

    def project(self, leader: Checks) -> Projected:
        """Verify the reports, and project the valid ones. The same answers get the same reply."""
        current, body = self._current(leader.number), digest("answers", leader.to_bytes())
        found = self._find_comparison(leader.number)
        if found is not None:
            if found.answers != body:
                raise Refused(f"the reports of round {leader.number} are projected")
            return found.projected
        terms = current.request.terms
        if not terms.compares:
            raise Refused(f"the updates of round {leader.number} are not compared with each other")
        if current.checks is None or len(leader.answers) != len(current.reports):
            raise Refused(f"round {leader.number} needs answers for each of its {len(current.reports)} reports")
        outcomes = compare(current.checks, leader, current.request.shape)
        seeds = [seed for seed, o in zip(current.seeds, outcomes, strict=True) if seed and o == Outcome.VALID]
        refused = refuse_count(len(seeds), terms)
        if refused is not None:
            raise Refused(refused)
        mean, version = None, current.request.mean if terms.mean else 0
        if version:
            mean = self._means.find(version, terms.weights)
        try:
            index, triple = self._triples.position, self._triples.take()
            # All rows of such rounds, so that triples that are too small are noticed in the first.
            mask = triple.mask(len(seeds) + MEAN_ROWS * terms.mean)
        except NoTriple as problem:
            raise Refused(str(problem)) from problem
        # Drawn only now: a client that knows the key could choose its projection.
        key = self._draw_key()
        rows = np.stack([project(terms.ring.draw(seed, terms.words)[: terms.weights], key) for seed in seeds])
        if mean is not None:
            rows = np.concatenate([rows, project_mean(mean, key, leader=False)])
        version = 0 if mean is None else version
        projected = Projected(
            leader.number, outcomes, key, self._triples.deal, index, rows - mask[: len(rows)], version
        )
        self._comparison = _Comparison(body, projected, (rows, triple))
        return projected

    def multiply(self, leader: Masked) -> Products:
        """The helper's half of the inner products: once for each ticket."""
        current, found = self._current(leader.number), self._find_comparison(leader.number)
        body = digest("masked", leader.to_bytes())
        if found is None:
            raise Refused(f"the reports of round {leader.number} are not projected yet")
        if found.products is not None:
            if found.masked != body:
                raise Refused(f"the updates of round {leader.number} are compared")
            return found.products
        assert found.secret is not None
        rows, triple = found.secret
        if leader.masked.shape != rows.shape or leader.mean != (found.projected.mean > 0):
            raise Refused(f"{len(rows)} projections are needed, got {len(leader.masked)}")
        if len(leader.references) != current.request.terms.references:
            raise Refused(f"the terms say {current.request.terms.references} public vectors")
        opened = found.projected.masked + leader.masked
        products = multiply(opened, triple, leader=False)
        found.products = Products(leader.number, products, rows[: leader.n_clients] @ leader.references.T)
        found.masked, found.secret = body, None
        return found.products

    def settle(self, leader: Checks) -> Settled:
        if self._current(leader.number).request.terms.compares:
            raise Refused(f"round {leader.number} is settled by weights")
        return super().settle(leader)

    def settle_weights(self, leader: Weights) -> Settled:
        """Give the half of the sum with these weights: once for each ticket."""
        current, found = self._current(leader.number), self._find_comparison(leader.number)
        body = digest("weights", leader.to_bytes())
        if current.settlement is not None:
            if current.settlement[0] != body:
                raise Refused(f"round {leader.number} is settled")
            return current.settlement[1]
        if found is None or found.products is None:
            raise Refused(f"the updates of round {leader.number} are not compared yet")
        outcomes = found.projected.outcomes
        if len(leader.weights) != len(outcomes) or any(
            weight > VOTE * (outcome == Outcome.VALID) for weight, outcome in zip(leader.weights, outcomes, strict=True)
        ):
            raise Refused(f"weights must be from 0 to {VOTE} for valid reports, and 0 for others")
        refused = refuse_opening(leader.weights, current.request.terms)
        settled = Settled(leader.number, outcomes, leader.weights, refused)
        if refused is None:
            if leader.lesson is not None:
                self._learn(leader.number, leader.lesson, found.projected)
            self._save_settlement(current, self._state.memory)
            if leader.lesson is not None:
                self._means.keep_only(leader.number, found.projected.mean)
            settled = self._sum(current, settled)
        current.settlement = (body, settled)
        current.key, current.seeds = None, ()  # as after every settlement
        return settled

    def _learn(self, number: int, lesson: Lesson, projected: Projected) -> None:
        """Change the half of the running mean. On disk before the settlement is, and known by this ticket's number."""
        current = self._current(number)
        terms, outcomes = current.request.terms, projected.outcomes
        if not terms.mean or any(
            len(factors) != len(outcomes)
            or any(factor and outcome != Outcome.VALID for factor, outcome in zip(factors, outcomes, strict=True))
            for factors in lesson.factors
        ):
            raise Refused("a running mean learns valid reports, if the terms say that there is one")
        before = None
        if not lesson.restart:
            before = self._means.find(projected.mean, terms.weights) if projected.mean else None
            if before is None:
                raise Refused("there is no running mean: it must start again")
        rows = (None if seed is None else terms.ring.draw(seed, terms.words) for seed in current.seeds)
        try:
            self._means.save(number, learn(before, lesson, rows, terms.weights))
        except OSError as error:
            raise Refused(f"the helper's half of the running mean cannot be written: {error.strerror}") from error

    def _find_comparison(self, number: int) -> _Comparison | None:
        found = self._comparison
        return found if found is not None and found.projected.number == number else None
