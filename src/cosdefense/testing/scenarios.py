"""Rounds for `check_restoring`, described by a few numbers: how honest clients agree, and what malicious ones send."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attacks._forgeries import Forgery, ForgeryBuilder
from ..attacks._geometry import normalize, normalize_rows
from ..attacks._knowledge import known_rows
from ..core import Cohort, Layout, TrustedData, derive, generator

LAYOUT = Layout((("features.weight", (12, 16)), ("head.weight", (8, 12))), "head.weight", 288)
N_CLASSES = 10  # of the server's data

Direction = Literal["random", "flat", "model", "against_model", "opposite"]
Deviation = Literal["noise", "blocks", "half", "one"]
Norms = Literal["equal", "one_long", "half_long", "one_short"]


@dataclass(frozen=True)
class HonestRows:
    """What honest clients send: r · unit(a + s · zᵢ), with a common direction a and a deviation zᵢ of each client.

    Args:
        cosine: The smallest cosine between two of them; s is chosen accordingly.
        direction: Of a. "random"; "flat": all coordinates have the same size; "model": along the parameters of the
            model; "against_model": the opposite of that; "opposite": of the direction of the last round. Except for
            the last two, all rounds of a scenario have the same a.
        deviation: "noise": random. "blocks": every client lacks the direction in coordinates of its own. "half":
            one half of the clients deviates in one way, the other half in the opposite one. "one": the same with one
            client against all others.
        norms: Whose norm is `norm_ratio` times that of the others, and not equal.
        norm_ratio: The largest norm divided by the smallest.
        scale: The smallest norm.
    """

    cosine: float
    direction: Direction = "random"
    deviation: Deviation = "noise"
    norms: Norms = "equal"
    norm_ratio: float = 1.0
    scale: float = 1.0

    def build(self, n: int, n_honest: int, common: Float[Tensor, " d"], rng: torch.Generator) -> Float[Tensor, "n d"]:
        """The honest rows first, then what malicious clients would send if they were honest, in the same patterns."""
        pattern = torch.arange(n) % max(1, n_honest)
        deviations = _orthogonalize(self._draw_deviations(pattern, common, rng), common)
        products = (deviations @ deviations.T).fill_diagonal_(1)
        # cos(i, j) = 1 − w · (1 − zᵢ·zⱼ) for rows √(1 − w) · a + √w · zᵢ
        weight = min(1.0, (1 - self.cosine) / max(1e-12, 1 - float(products.min())))
        rows: Tensor = math.sqrt(1 - weight) * common + math.sqrt(weight) * deviations
        return self.scale * self._compute_norms(pattern)[:, None] * rows

    def _draw_deviations(
        self, pattern: Int[Tensor, " n"], common: Float[Tensor, " d"], rng: torch.Generator
    ) -> Float[Tensor, "n d"]:
        n_patterns = int(pattern.max()) + 1
        noise = torch.randn(len(pattern), len(common), generator=rng, dtype=torch.float64)
        if self.deviation == "noise" or n_patterns == 1:
            return noise
        if self.deviation == "blocks":
            block = torch.randint(n_patterns, (len(common),), generator=rng)
            return torch.where(block == pattern[:, None], -common, common)
        n_against = 1 if self.deviation == "one" else n_patterns // 2
        return torch.where(pattern < n_against, 1.0, -1.0).double()[:, None] * noise[0]

    def _compute_norms(self, pattern: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        n_patterns = int(pattern.max()) + 1
        chosen = pattern < (n_patterns // 2 if self.norms == "half_long" else 1)
        is_long = ~chosen if self.norms == "one_short" else chosen
        return torch.where(is_long & (self.norms != "equal"), self.norm_ratio, 1.0).double()

    def __str__(self) -> str:
        parts = [f"cosines of at least {self.cosine:.3g}", self.deviation, f"{self.direction} direction"]
        parts += [f"{self.norms.replace('_', ' ')} × {self.norm_ratio:.3g}"] * (self.norms != "equal")
        return ", ".join([*parts, f"norm {self.scale:.3g}"])


@dataclass(frozen=True)
class Rounds:
    """Some consecutive rounds of the same kind. The first clients of a round are honest, the others malicious."""

    honest: HonestRows
    n_malicious: int
    forgery: Forgery
    n_rounds: int = 1

    def __str__(self) -> str:
        sent = f"{self.n_malicious} malicious clients send {self.forgery}" if self.n_malicious else "nobody malicious"
        return f"{sent}; honest updates: {self.honest}"


@dataclass(frozen=True)
class Scenario:
    """Some rounds that a defense remembers, and a last round in which most clients are honest and agree."""

    last: Rounds
    history: tuple[Rounds, ...] = ()
    n_clients: int = 10
    seed: int = 0

    def build_history(self) -> Iterator[Cohort]:
        """The earlier rounds."""
        number = 0
        for rounds in self.history:
            for _ in range(rounds.n_rounds):
                yield self._build_round(rounds, number)
                number += 1

    def build_last(self) -> Cohort:
        """The last round. Its first `n_clients − n_malicious` rows are honest."""
        return self._build_round(self.last, -1)

    @property
    def n_earlier_rounds(self) -> int:
        return sum(rounds.n_rounds for rounds in self.history)

    def _build_round(self, rounds: Rounds, number: int) -> Cohort:
        n, params = self.n_clients, self._draw_unit_vector("model")
        common = self._compute_direction(rounds.honest.direction, params)
        updates = rounds.honest.build(n, n - rounds.n_malicious, common, generator(self.seed, "honest", number))
        malicious = torch.arange(n) >= n - rounds.n_malicious
        # A malicious client keeps its number: it cannot take part under the name of an honest one.
        clients = torch.where(malicious, 2 * n - 1 - torch.arange(n), torch.arange(n))
        server = AgreeingServerData(params, rounds.honest.scale * common)
        seed = derive(self.seed, "round", number)
        cohort = Cohort.of(updates, params, LAYOUT, clients, seed=seed, trusted_data=server)
        if rounds.n_malicious:
            builder = ForgeryBuilder.from_cohort(cohort, updates[known_rows(malicious, "full")], malicious)
            updates[malicious] = builder.build(rounds.forgery)
        return cohort

    def _compute_direction(self, name: Direction, params: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        if name == "opposite":
            return -self._compute_direction(self.last.honest.direction, params)
        if name in ("model", "against_model"):
            return params if name == "model" else -params
        drawn = self._draw_unit_vector("direction")
        return drawn.sign() / math.sqrt(len(drawn)) if name == "flat" else drawn

    def _draw_unit_vector(self, purpose: str) -> Float[Tensor, " d"]:
        return normalize(torch.randn(LAYOUT.size, generator=generator(self.seed, purpose), dtype=torch.float64))

    def __str__(self) -> str:
        before = [f"{rounds.n_rounds} rounds: {rounds}" for rounds in self.history]
        return "\n".join([*before, f"last round, {self.n_clients} clients: {self.last}"])


@dataclass(frozen=True, eq=False)
class AgreeingServerData(TrustedData):
    """Clean data at the server that say the same as the honest clients: the best case for rules that use them."""

    origin: Float[Tensor, " d"]
    target: Float[Tensor, " d"]

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        return self.target.clone()

    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        """The logit of the true class grows along the target."""
        labels = torch.arange(N_CLASSES)
        progress = (params - self.origin) @ self.target / (self.target @ self.target)
        return progress * torch.eye(N_CLASSES, dtype=params.dtype), labels

    def predict_random(
        self, params: Float[Tensor, " d"], updates: Float[Tensor, "k d"], n: int, seed: int
    ) -> Float[Tensor, "1+k n c"]:
        """A network of two layers, as the layout describes."""
        inputs = torch.rand(n, 16, generator=torch.Generator().manual_seed(seed), dtype=params.dtype)
        models = (LAYOUT.unflatten(params + update) for update in (0, *updates))
        return torch.stack([(inputs @ of["features.weight"].T).relu() @ of["head.weight"].T for of in models])

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        return self.target.expand(len(clients), -1).clone()


def _orthogonalize(rows: Float[Tensor, "n d"], common: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """Unit rows, orthogonal to the common direction."""
    return normalize_rows(rows - (rows @ common)[:, None] * common)
