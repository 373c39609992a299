"""Trains the policies of `LearnedPolicy`: a federation as a game, played by the attackers on their own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attacks.policy_network import ActionRanges
from ..data.datasets import Dataset
from ..runs.experiment import Experiment

__all__ = ["MissingRLExtra", "TrainingInterrupted", "TrainingOptions", "TrainingResult", "train_policy"]

Progress = Callable[[int, float | None], None]  # decisions taken, the mean loss of the last episode


class MissingRLExtra(ImportError):
    """The reinforcement learning libraries are not installed."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, after the policy so far has been written, if there was anything to write."""

    def __init__(self, steps: int, written: bool) -> None:
        super().__init__()
        self.steps, self.written = steps, written


@dataclass(frozen=True)
class TrainingOptions:
    """How a policy is trained.

    The authors' TD3 takes 80,000 decisions with a learning rate of 1e-7, hidden layers of [256, 128] and no discount.
    That rate moves nothing in the few thousand decisions that a CPU has time for. Rises of the loss add up to the last
    loss, which is a matter of luck: one round with many attackers, or with none. Discounted, they add up to a mean over
    the decisions to come, about 1 / (1 − discount) of them.
    """

    steps: int = 5000  # decisions in all
    episode: int = 100  # decisions per episode; the authors: 1000
    actions: ActionRanges = ActionRanges(steps=(1, 10))  # the authors' 49 make a decision several times as dear
    net: tuple[int, ...] = (64, 64)  # hidden layers of actor and critics
    learning_rate: float = 1e-3
    discount: float = 0.9
    noise: float = 0.3  # of exploration; the authors: 0.1
    explored: int = 1000  # first decisions, taken at random; at most an eighth of all
    batch: int = 128

    def __post_init__(self) -> None:
        for name in ("steps", "episode", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.explored < 0:
            raise ValueError(f"explored must be at least 0, got {self.explored}")
        if not self.net or min(self.net) < 1:
            raise ValueError(f"net needs hidden layers of at least 1, got {self.net}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    @property
    def start(self) -> int:
        """The decision after which learning starts."""
        return min(self.explored, self.steps // 8)


@dataclass(frozen=True)
class TrainingResult:
    """What came of it."""

    path: Path
    steps: int  # decisions taken
    losses: tuple[float, ...]  # on the attackers' data, the mean of every finished episode, exploration included


def train_policy(
    cell: Experiment,
    dataset: Dataset,
    device: torch.device,
    path: Path,
    options: TrainingOptions = TrainingOptions(),
    progress: Progress = lambda done, loss: None,
) -> TrainingResult:
    """Train a policy against the one defense of `cell`, with the one seed of `cell`, and write it to `path`.

    It is written now and then, at the end, and when interrupted (TrainingInterrupted): what was learned is not lost.
    """
    try:  # here, so that the package works without these libraries
        from .training import train
    except ModuleNotFoundError as error:
        if error.name not in ("gymnasium", "stable_baselines3"):
            raise
        raise MissingRLExtra(
            "training an attack needs gymnasium and stable-baselines3, "
            f"{error.name} was not found: pip install 'cosdefense[rl]'"
        ) from error
    return train(cell, dataset, device, path, options, progress)
