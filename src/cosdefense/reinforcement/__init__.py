"""Trains the policies of `LearnedPolicy`: a federation as a game, played by the attackers on their own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attacks.policy import Actions
from ..data.datasets import Dataset
from ..experiment import Experiment

__all__ = ["Lesson", "MissingRLExtra", "Trained", "TrainingInterrupted", "train_policy"]

Progress = Callable[[int, float | None], None]  # steps done, the last episode's rise of the loss


class MissingRLExtra(ImportError):
    """The reinforcement learning libraries are not installed."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C, after the policy so far has been written, if there was anything to write."""

    def __init__(self, steps: int, written: bool) -> None:
        super().__init__()
        self.steps, self.written = steps, written


@dataclass(frozen=True)
class Lesson:
    """How a policy is trained.

    The authors' TD3 takes 80,000 steps with a learning rate of 1e-7, nets of [256, 128] and no discount. That rate
    moves nothing in the few thousand steps that a CPU has time for.
    """

    steps: int = 5000  # decisions in all
    episode: int = 100  # decisions per episode; the authors: 1000
    actions: Actions = Actions(steps=(1, 10))  # 49 steps, as the authors allow, cost five times as much
    net: tuple[int, ...] = (64, 64)  # hidden layers of actor and critics
    learning_rate: float = 3e-4
    discount: float = 0.95
    noise: float = 0.2  # of exploration; the authors: 0.1
    explored: int = 500  # first decisions, taken at random; at most half of all
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
        return min(self.explored, self.steps // 2)


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    path: Path
    steps: int  # decisions taken
    rises: tuple[float, ...]  # of the loss, per finished episode, exploration included


def train_policy(
    cell: Experiment,
    dataset: Dataset,
    device: torch.device,
    path: Path,
    lesson: Lesson = Lesson(),
    progress: Progress = lambda done, rise: None,
) -> Trained:
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
    return train(cell, dataset, device, path, lesson, progress)
