"""Reinforcement learning attack: a trained policy chooses the magnitude of the attack and the number of local steps.

Li, Sun, Zheng. Learning to Attack Federated Learning: A Model-based Reinforcement Learning Attack Framework.
NeurIPS 2022. `cosdefense train-attack` trains the policy, on the malicious clients' own data.

The authors train one model on the pooled data of all malicious clients, in batches of 200. Here every sampled malicious
client trains on its own data, with the batch size of honest clients, and the mean of these updates is reversed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Layout, State
from ..core.experiment_folder import experiment_folder
from .attack import Attack, TrainingPlan
from .policy_network import Policy, digest


@dataclass(frozen=True)
class ReversedOwnMean(Attack):
    """All malicious clients send −magnitude · (mean of their own updates): a policy that always chooses one action.

    Args:
        magnitude: The factor.
        steps: The number of local steps that malicious clients train.
    """

    magnitude: float = 15.0
    steps: int = 1

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
    """All malicious clients send −magnitude · (mean of their own updates), with a magnitude chosen by a policy.

    The policy chooses the number of local steps as well. It is a neural network that sees the last layer of the
    global model and the number of malicious clients in the round.

    Args:
        path: The policy, a safetensors file. A relative path is searched in the working directory, then beside the
            experiment's file.
        sha256: The SHA-256 digest that the file must have. None: it is computed from the file. A changed policy is a
            different attack.
    """

    path: str
    sha256: str | None = None

    def __post_init__(self) -> None:
        _, sha256 = self._policy_and_digest
        if self.sha256 is None:
            object.__setattr__(self, "sha256", sha256)
        elif self.sha256 != sha256:
            raise ValueError(f"policy {self.path} has changed: needed sha256 {self.sha256}, got {sha256}")

    @cached_property
    def _policy_and_digest(self) -> tuple[Policy, str]:
        content = _find(self.path).read_bytes()
        try:
            return Policy.from_bytes(content), digest(content)
        except ValueError as error:
            raise ValueError(f"policy {self.path} cannot be used: {error}") from error

    @property
    def policy(self) -> Policy:
        return self._policy_and_digest[0]

    def plan_training(
        self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int, state: State
    ) -> TrainingPlan:
        return self._choose_action(params, layout, n_malicious).plan_training(params, layout, n_malicious, state)

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        action = self._choose_action(cohort.params, cohort.layout, int(malicious.sum()))
        return action.forge(cohort, malicious, state)

    def _choose_action(self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int) -> ReversedOwnMean:
        try:
            return ReversedOwnMean(*self.policy.decide(params, layout, n_malicious))
        except ValueError as error:
            raise ValueError(f"policy {self.path}: {error}") from error


def _find(path: str) -> Path:
    for folder in (Path(), experiment_folder() or Path()):
        if (folder / path).is_file():
            return folder / path
    raise ValueError(
        f"policy {path} was not found in {Path.cwd()}, nor beside the experiment: cosdefense train-attack makes one"
    )
