"""`Secure`: a defense whose server sees no client's update.

Every client divides its update into two halves that say nothing alone, one for each of two servers, claims its own
score and proves the claim. The servers check the proofs together, accept or reject clients by their claims, and open
one sum: that of the accepted. docs/secure.md describes the protocol and what it does not protect.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..aggregators import Mean, NormLimitedMean, TaperedMean
from ..aggregators.tapered_mean import Tapered
from ..core import Cohort, Defense, Filter, Judged, Layout, SimilarityFilter, State, TooFewClients, Verdict
from ..core.verdict import scatter_rows
from ..filters import Clip, CosDefense, NormLimit
from .compared_rounds import ComparedOutcomes, run_compared_in_the_clear, run_compared_protocol
from .comparing_rule import ComparingRule
from .comparison import VOTE
from .encoding import Floats, decode_mean, decode_words
from .model import ModelParts
from .rounds import Outcomes, run_in_the_clear, run_protocol
from .rule import smallest_opening
from .shared_mean import SharedMean
from .streams import digest
from .terms import LONGEST, SHORTEST, NormLimitTerms, Terms

KEPT_VARIANCE = 0.1  # a running variance keeps at least this share of its value in a round
MOST_TYPICAL = 16  # how many typical norms an update may have where a filter limits norms


class NoLengthProof(UserWarning):
    """Updates are not clipped: one accepted client can ruin the model."""


@dataclass(frozen=True)
class OpenedRound(Judged):
    """A judged round whose updates stay secret: only their mean is known."""

    mean: Tensor | None = None
    tapered: Tapered | None = None  # how updates counted by their norms in it


@dataclass(frozen=True)
class MemoryWithMean:
    """What a filter remembers, and the running mean of secret updates that belongs to it."""

    part: State
    mean: SharedMean


@dataclass(frozen=True, init=False)
class Secure(Defense):
    """A defense under secure aggregation between two servers that do not collude.

    Called with a cohort, it runs the protocol with both servers as objects: this is what simulations use. A Flower
    server runs it with a helper on another computer: `cosdefense.flower.Defended(…, helper=…)`.

    It takes `CosDefense`, alone or with `Clip` or `NormLimit` before it, and `Mean` or `NormLimitedMean`.
    With `NormLimit`, the norms of updates are opened to both servers, in steps of 0.4 % of the running median norm.

    It also takes filters that decide from norms and cosines alone (`SimilarityFilter`), as those of `opposed-clusters`
    and `two-references` do. Then the inner products of all updates are opened to the leader, a third party deals
    randomness, and both servers must follow the protocol. One of them may keep a running mean of updates, as
    `TwoReferences` does. Nobody sees it; the cosines of updates with it are opened too. Such filters may be followed
    by `TaperedMean`.

    Buffers are secret too, so they cannot be combined by a median: whatever `Defense.buffers` says, their mean over the
    accepted is used. Each client proves a bound on their norm, the mean is limited in every coordinate, and a running
    variance keeps a tenth of its value.

    Args:
        defense: What to compute.
        clip: The norm to which clients clip their updates, and prove it. With `Clip` among the filters, leave it out.
            With `NormLimit` it is the unit of the first round. None: no proof of lengths, for `CosDefense` only.
        buffer_clip: By how much of its own size a buffer may change in one round.
        colluders: The share of clients that may collude with a server. Every sum holds at least two others.
        smallest: The least number of clients in a sum. None: from `colluders`, and at least 3.
        largest: Without `clip`, the largest coordinate of an update.
        encrypted: False: decide the same from the encoded updates, without cryptography. `plain` gives this twin.
    """

    clip: float | None = 4.0
    buffer_clip: float = 1.0
    colluders: float = 0.2
    smallest: int | None = None
    largest: float = 8.0
    encrypted: bool = True

    def __init__(
        self,
        defense: Defense,
        *,
        clip: float | None = 4.0,
        buffer_clip: float = 1.0,
        colluders: float = 0.2,
        smallest: int | None = None,
        largest: float = 8.0,
        encrypted: bool = True,
    ) -> None:
        values: dict[str, Any] = {
            name: getattr(defense, name) for name in ("filters", "aggregator", "hooks", "buffers")
        }
        values |= {"clip": clip, "buffer_clip": buffer_clip, "colluders": colluders}
        values |= {"smallest": smallest, "largest": largest, "encrypted": encrypted}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = tuple(type(part) for part in self.filters)
        if not self.compares and kinds not in ((CosDefense,), (Clip, CosDefense), (NormLimit, CosDefense)):
            given = ", ".join(kind.__name__ for kind in kinds) or "none"
            raise ValueError(
                f"Secure needs the filter CosDefense, or Clip or NormLimit and CosDefense, or filters that decide from "
                f"norms and cosines alone, got {given}. Presets that work: cosdefense, two-references, opposed-clusters"
            )
        if not isinstance(self.aggregator, Mean | NormLimitedMean) and not self._tapers:
            raise ValueError(
                f"Secure needs the aggregator Mean or NormLimitedMean, or TaperedMean where updates are compared: "
                f"others compare updates, which stay secret, got {type(self.aggregator).__name__}"
            )
        if not 0 <= self.colluders < 1:
            raise ValueError(f"Secure.colluders must be in [0, 1), got {self.colluders}")
        if self.smallest is not None and self.smallest < 3:
            raise ValueError(f"Secure.smallest must be at least 3, got {self.smallest}")
        for name in ("clip", "buffer_clip", "largest"):
            value = getattr(self, name)
            if value is not None and not 2**-20 <= value <= 2**20:
                raise ValueError(f"Secure.{name} must be from 2**-20 to 2**20, got {value}")
        if self.max_norm is None:
            if kinds[0] is NormLimit:
                raise ValueError("Secure.clip is the unit of NormLimit's first round and must not be None")
            if self.compares:
                raise ValueError("Secure.clip must not be None where updates are compared: long ones would wrap")
            warnings.warn(
                "Secure without clip: the format of numbers is the only bound on what an accepted client sends",
                NoLengthProof,
                stacklevel=3,
            )

        if sum(part.keeps_mean for part in self.comparing) > 1:
            raise ValueError("Secure takes at most one filter that keeps a running mean of updates")

    @property
    def _tapers(self) -> bool:
        """Whether updates count by their norms in the mean."""
        return self.compares and isinstance(self.aggregator, TaperedMean)

    @property
    def compares(self) -> bool:
        """Whether updates are compared with each other."""
        return bool(self.comparing) and len(self.comparing) >= len(self.filters) - isinstance(self.filters[0], Clip)

    @property
    def comparing(self) -> tuple[SimilarityFilter, ...]:
        """The filters that compare updates."""
        return tuple(part for part in self.filters if isinstance(part, SimilarityFilter))

    @property
    def max_norm(self) -> float | None:
        """The norm to which clients clip: that of `Clip` among the filters, or else `clip`."""
        first = self.filters[0]
        return first.max_norm if isinstance(first, Clip) else self.clip

    @property
    def plain(self) -> Secure:
        """The same defense without cryptography. It decides the same and gives the same update, bit by bit."""
        return Secure(self._defense, **{**self.options, "encrypted": False})

    @property
    def hides_updates(self) -> bool:
        return True

    @property
    def combines_buffers(self) -> bool:
        return False  # a median compares clients

    @property
    def rehearsal(self) -> Defense:
        return self.plain

    @property
    def _defense(self) -> Defense:
        return Defense(self.filters, self.aggregator, self.hooks, self.buffers)

    @property
    def options(self) -> dict[str, Any]:
        """What was given beside the defense."""
        names = ("clip", "buffer_clip", "colluders", "smallest", "largest", "encrypted")
        return {name: getattr(self, name) for name in names}

    def init(self) -> State:
        """As of every defense; a filter that keeps a running mean has the halves of it beside its own memory."""
        *memories, last = super().init()
        if not self.compares:
            return (*memories, last)
        pairs = zip(self.filters, memories, strict=True)
        return (*(MemoryWithMean(m, SharedMean()) if _keeps_mean(part) else m for part, m in pairs), last)

    def get_parts(self, layout: Layout) -> ModelParts:
        """The parts of a model."""
        if self.compares:
            return ModelParts(layout, None)
        cosdefense = self.filters[-1]
        assert isinstance(cosdefense, CosDefense)
        return ModelParts(layout, layout.find_layer(cosdefense.layer))

    def get_memory(self, state: State) -> float | None:
        """The running median norm, if there is a norm limit and a round was settled."""
        if self.compares:
            found = (
                part.get_typical_norm(memory)
                for part, memory in zip(self.comparing, self._memories(state), strict=True)
            )
            tapered = state[-1].update if self._tapers else None
            return next((norm for norm in found if norm is not None), tapered)
        return state[0] if isinstance(self.filters[0], NormLimit) else None

    def rule(self, params: Tensor, state: State) -> ComparingRule:
        """The rule of a round where updates are compared."""
        mean = next((memory.mean for memory in state if isinstance(memory, MemoryWithMean)), None)
        tapering = (self.aggregator, state[-1]) if isinstance(self.aggregator, TaperedMean) else None
        return ComparingRule(self.comparing, self._memories(state), params, mean, tapering)

    def _memories(self, state: State) -> tuple[State, ...]:
        """What the filters that compare updates remember, without running means."""
        found = state[len(self.filters) - len(self.comparing) : -1]
        return tuple(memory.part if isinstance(memory, MemoryWithMean) else memory for memory in found)

    def terms(
        self, parts: ModelParts, params: Tensor, n: int, memory: float | None, quorum: int = 0, references: int = 0
    ) -> Terms:
        """The public terms of a round with at most `n` clients, of which at least `quorum` must send valid reports.

        `references`: the number of public vectors, if updates are compared.
        """
        cosdefense, first = self.filters[-1], self.filters[0]
        smallest = self.smallest or smallest_opening(self.colluders, n)
        if n < smallest:
            raise TooFewClients(f"Secure opens sums of at least {smallest} clients, got {n} clients")
        head, weights, buffers = parts.sizes
        least = min(n, max(quorum, smallest))
        if self.compares:
            return Terms(
                n, head, weights, buffers, parts.buffer_units(params), "mean", 1.0, self._longest(memory), None,
                self.buffer_clip, self.largest, smallest, least, references, any(map(_keeps_mean, self.comparing)),
            )  # fmt: skip
        assert isinstance(cosdefense, CosDefense)
        limit = None
        if isinstance(first, NormLimit):
            limit = NormLimitTerms(first.max_ratio, first.decay, first.quantile, memory is not None)
        clip = self.max_norm if limit is None or memory is None else memory
        return Terms(
            n, head, weights, buffers, parts.buffer_units(params), cosdefense.threshold, cosdefense.k,
            clip, limit, self.buffer_clip, self.largest, smallest, least,
        )  # fmt: skip

    def _longest(self, typical: float | None) -> float:
        """The norm to which clients clip where updates are compared."""
        assert self.max_norm is not None
        limits = self._tapers or any(part.limits_norms for part in self.comparing)
        if isinstance(self.filters[0], Clip) or not limits:
            return self.max_norm
        return min(LONGEST, max(SHORTEST, MOST_TYPICAL * (typical or self.max_norm)))

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        """Run the round up to the opened sum. Rows that are not finite are rejected: they cannot be encoded."""
        if len(cohort) and not bool((cohort.weights == cohort.weights[0]).all()):
            raise ValueError("Secure needs equal weights: halves of updates are added, not multiplied")
        if self.compares:
            return self._judge_compared(cohort, state)
        memory, parts = self.get_memory(state), self.get_parts(cohort.layout)
        terms, theta = self.terms(parts, cohort.params, len(cohort), memory), parts.theta(cohort.params)
        finite = cohort.updates.isfinite().all(dim=1).nonzero().flatten().tolist()
        encoded = [parts.encode(cohort.updates[i], theta, terms) for i in finite]
        run = run_protocol if self.encrypted else run_in_the_clear
        outcomes = run(encoded, parts, cohort.params, theta, terms, memory)
        return self.conclude(cohort, finite, outcomes, parts, terms, state)

    def _judge_compared(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        rule, parts = self.rule(cohort.params, state), self.get_parts(cohort.layout)
        terms = self.terms(parts, cohort.params, len(cohort), self.get_memory(state), references=len(rule.references))
        finite = cohort.updates.isfinite().all(dim=1).nonzero().flatten().tolist()
        encoded = [parts.encode(cohort.updates[i], [], terms) for i in finite]
        run = run_compared_protocol if self.encrypted else run_compared_in_the_clear
        # A helper draws it at random. Here the same seed must give the same bits.
        key = digest("simulated projection", str(cohort.seed).encode())
        outcomes = run(encoded, parts, cohort.params, terms, rule, key)
        return self.conclude_compared(cohort, finite, outcomes, parts, terms, state)

    def combine(self, judged: Judged, state: State) -> tuple[Verdict, State]:
        """Give the opened mean to the aggregator, as its only row."""
        if judged.skipped is not None:
            return judged.verdict(), state
        if not isinstance(judged, OpenedRound) or judged.mean is None:
            raise TypeError("Secure combines what its own judge returned")
        *memories, last = state
        if self._tapers:
            if judged.tapered is None:  # nobody moved the weights; buffers may have moved
                return judged.verdict(judged.mean), state
            assert isinstance(self.aggregator, TaperedMean)
            n_trainable = judged.received.layout.n_trainable
            update, last = self.aggregator.limit_mean(judged.mean, n_trainable, judged.tapered, last)
            return judged.verdict(update), (*memories, last)
        single = torch.zeros(1, dtype=torch.long, device=judged.received.clients.device)
        row = replace(
            judged.received, updates=judged.mean[None], clients=single, weights=judged.received.weights.new_ones(1)
        )
        update, last = self.aggregator(row, last)
        return judged.verdict(update), (*memories, last)

    def conclude(
        self, cohort: Cohort, valid: Sequence[int], outcomes: Outcomes, parts: ModelParts, terms: Terms, state: State
    ) -> tuple[Judged, State]:
        """The judged round, given what was opened. `valid`: the rows of the cohort that the outcomes are about.

        The updates of the cohort are not looked at.
        """
        decision, evidence = outcomes.decision, {"CosDefense": outcomes.decision.scores}
        if isinstance(self.filters[0], NormLimit):
            assert terms.clip is not None
            lengths = tuple(claim.length * terms.clip / 256 for claim in outcomes.claims)
            evidence, state = {"NormLimit": lengths} | evidence, (decision.memory, *state[1:])
        votes = tuple(float(weight > 0) for weight in decision.weights)
        opened = None
        if outcomes.sums is not None:
            opened = parts.join(*decode_mean(*outcomes.sums, decision.n_accepted, terms))
        return _finish(cohort, valid, evidence, votes, opened, decision.refused), state

    def conclude_compared(
        self,
        cohort: Cohort,
        valid: Sequence[int],
        outcomes: ComparedOutcomes,
        parts: ModelParts,
        terms: Terms,
        state: State,
    ) -> tuple[Judged, State]:
        """As `conclude`, where updates are compared."""
        choice, words = outcomes.choice, outcomes.words
        votes = tuple(vote / VOTE for vote in choice.votes)
        opened = None
        if words is not None:
            # A mean by length lengthens short updates. Buffers are no longer than their mean over the accepted.
            divisors = choice.divisor, max(choice.divisor, float(sum(choice.weights)))
            opened = parts.join(np.zeros(0), *decode_words(words, *divisors, terms))
        before = state[-1 - len(self.comparing) : -1]
        after = (
            MemoryWithMean(new, outcomes.mean or old.mean) if isinstance(old, MemoryWithMean) else new
            for old, new in zip(before, choice.memories, strict=True)
        )
        state = (*state[: -1 - len(self.comparing)], *after, state[-1])
        judged = _finish(cohort, valid, choice.evidence, votes, opened, choice.refused)
        return replace(judged, tapered=choice.tapered), state


def _keeps_mean(part: Filter) -> bool:
    return isinstance(part, SimilarityFilter) and part.keeps_mean


def _finish(
    cohort: Cohort,
    valid: Sequence[int],
    evidence: Mapping[str, Sequence[float]],
    votes: Sequence[float],
    opened: Floats | None,
    refused: str | None,
) -> OpenedRound:
    """The judged round. Evidence and votes are about the valid rows; others count nothing."""
    rows, n = torch.tensor(valid, dtype=torch.long), len(cohort)

    def scatter(values: Sequence[float], fill: float) -> Tensor:
        return scatter_rows(cohort.weights.new_tensor(values), rows, n, fill=fill)

    mean = None if opened is None else _keep_variances(torch.from_numpy(opened), cohort).to(cohort.params)
    remaining = replace(cohort, weights=cohort.weights * scatter(votes, 0.0))
    scores = {name: scatter(values, math.nan) for name, values in evidence.items()}
    return OpenedRound(cohort, remaining, torch.arange(n), scores, {}, refused, mean=mean)


def _keep_variances(update: Tensor, cohort: Cohort) -> Tensor:
    for where in cohort.layout.variances:
        floor = (KEPT_VARIANCE - 1) * cohort.params[where].double().cpu()
        update[where] = torch.maximum(update[where], floor)
    return update
