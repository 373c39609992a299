"""Reinforcement learning attack: a trained policy says how hard to push and how long to train before.

Li, Sun, Zheng. Learning to Attack Federated Learning: A Model-based Reinforcement Learning Attack Framework.
NeurIPS 2022. `cosdefense train-attack` makes the policy, on the attackers' own data.

Where the authors train one model on the pooled data of all attackers, in batches of 200, here every sampled
attacker trains on its own data, as many samples a step as everybody, and the mean is pushed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Layout, State
from .attack import Attack, TrainingPlan
from .policy_network import Policy, digest


@dataclass(frozen=True)
class ReversedOwnMean(Attack):
    """Train honestly for some steps, then send the opposite of what was found: one action, held for ever."""

    magnitude: float = 15.0
    steps: int = 1  # local steps of the attackers

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude < math.inf:
            raise ValueError(f"magnitude must be at least 0 and finite, got {self.magnitude}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return TrainingPlan(steps=self.steps)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        if not bool(malicious.any()):
            return cohort.updates, state
        forged = -self.magnitude * cohort.updates[malicious].mean(dim=0)
        return forged.expand_as(cohort.updates), state


@dataclass(frozen=True)
class LearnedPolicy(Attack):
    """Attackers push against what honest training finds, as hard and after as many steps as a trained policy says.

    A relative path is looked for in the working directory, then where Python looks for modules; while an
    experiment is read, the folder of its file is one of those places.
    """

    path: str  # the policy, a safetensors file
    sha256: str | None = None  # of that file. None: of what is found; so a changed policy is another attack

    def __post_init__(self) -> None:
        _, found = self._read
        if self.sha256 is None:
            object.__setattr__(self, "sha256", found)
        elif self.sha256 != found:
            raise ValueError(f"policy {self.path} has changed: needed sha256 {self.sha256}, got {found}")

    @cached_property
    def _read(self) -> tuple[Policy, str]:
        content = _find(self.path).read_bytes()
        try:
            return Policy.from_bytes(content), digest(content)
        except ValueError as error:
            raise ValueError(f"policy {self.path} cannot be used: {error}") from error

    @property
    def policy(self) -> Policy:
        return self._read[0]

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return self._push(params, layout, n_malicious).plan_training(params, layout, n_malicious, state)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        push = self._push(cohort.params, cohort.layout, int(malicious.sum()))
        return push.forge(cohort, malicious, state)

    def _push(self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int) -> ReversedOwnMean:
        try:
            return ReversedOwnMean(*self.policy.decide(params, layout, n_malicious))
        except ValueError as error:
            raise ValueError(f"policy {self.path}: {error}") from error


def _find(path: str) -> Path:
    for folder in ("", *sys.path):
        if (Path(folder) / path).is_file():
            return Path(folder) / path
    raise ValueError(
        f"policy {path} was not found in {Path.cwd()}, nor beside the experiment: cosdefense train-attack makes one"
    )
