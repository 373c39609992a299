"""Training of the policies of `LearnedPolicy`: TD3 in a federation simulated on the malicious clients' own data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..attacks.policy_network import ActionRanges
from ..catalog.extras import extra_libraries
from ..data import Dataset
from ..runs.experiment import Experiment

__all__ = ["TrainingInterrupted", "TrainingOptions", "TrainingResult", "train_policy"]

Progress = Callable[[int, float | None], None]  # the number of decisions, the mean loss of the last episode


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. `written` says whether the policy was saved: before learning starts there is none."""

    def __init__(self, steps: int, written: bool) -> None:
        super().__init__()
        self.steps, self.written = steps, written


@dataclass(frozen=True)
class TrainingOptions:
    """The hyper-parameters of the training. A decision is one round with malicious clients in it.

    The authors use 80,000 decisions, a learning rate of 1e-7, hidden layers of [256, 128] and no discount. With that
    learning rate the few thousand decisions that are feasible on a CPU have no effect. Without a discount the rewards
    add up to the loss of the last round, which depends mostly on how many malicious clients are sampled then. With a
    discount they add up to an average over the next 1 / (1 − discount) decisions.

    Args:
        steps: The total number of decisions.
        episode_length: The number of decisions per episode. The authors use 1000.
        actions: The ranges of the actions. The authors allow 49 local steps, which makes a decision several times
            slower.
        hidden_layers: The sizes of the hidden layers of actor and critics.
        learning_rate: The learning rate of actor and critics.
        discount: The discount factor.
        exploration_noise: The standard deviation of the noise on actions. The authors use 0.1.
        exploration_steps: The number of random decisions before learning starts, at most an eighth of `steps`.
        batch_size: The number of decisions per gradient step.
    """

    steps: int = 5000
    episode_length: int = 100
    actions: ActionRanges = ActionRanges(steps=(1, 10))
    hidden_layers: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    discount: float = 0.9
    exploration_noise: float = 0.3
    exploration_steps: int = 1000
    batch_size: int = 128

    def __post_init__(self) -> None:
        for name in ("steps", "episode_length", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.exploration_steps < 0:
            raise ValueError(f"exploration_steps must be at least 0, got {self.exploration_steps}")
        if not self.hidden_layers or min(self.hidden_layers) < 1:
            raise ValueError(f"hidden_layers needs sizes of at least 1, got {self.hidden_layers}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        if not self.exploration_noise >= 0:
            raise ValueError(f"exploration_noise must be at least 0, got {self.exploration_noise}")

    @property
    def learning_starts(self) -> int:
        """The number of decisions before learning starts."""
        return min(self.exploration_steps, self.steps // 8)


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a training.

    Args:
        path: The file of the policy.
        steps: The number of decisions.
        losses: The mean loss of the global model on the malicious clients' data, for every finished episode.
    """

    path: Path
    steps: int
    losses: tuple[float, ...]


def train_policy(
    experiment: Experiment,
    dataset: Dataset,
    device: torch.device,
    path: Path,
    options: TrainingOptions = TrainingOptions(),
    progress: Progress = lambda done, loss: None,
) -> TrainingResult:
    """Train a policy against the defense of the experiment, which must have one defense and one seed.

    The policy is written to `path` at regular intervals, at the end, and on Ctrl-C (TrainingInterrupted).
    """
    with extra_libraries("rl", "training an attack", "gymnasium", "stable_baselines3"):
        from .training import train
    return train(experiment, dataset, device, path, options, progress)
