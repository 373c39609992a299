"""TD3 from stable-baselines3 learns the policy; what is kept of it is a policy file.

Fujimoto, van Hoof, Meger. Addressing Function Approximation Error in Actor-Critic Methods. ICML 2018.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

from .. import __version__
from ..attacks.policy_network import Policy
from ..catalog.options import ConfigError
from ..catalog.registry import describe
from ..core import derive
from ..data.datasets import Dataset
from ..runs.checkpoint import write_atomically
from ..runs.experiment import Experiment
from ..runs.prepare import build_model, build_world
from ..training.task import Task
from . import Progress, TrainingInterrupted, TrainingOptions, TrainingResult
from .environment import FederationEnv

WRITE_EVERY = 100  # decisions


def train(
    cell: Experiment, dataset: Dataset, device: torch.device, path: Path, options: TrainingOptions, progress: Progress
) -> TrainingResult:
    env = environment_of(cell, dataset, device, options)
    with _undisturbed():
        model = learner(env, options, cell.seeds[0])
        keeper = _Keeper(path, cell, options, progress)
        try:
            model.learn(options.steps, callback=keeper)
        except KeyboardInterrupt:
            raise TrainingInterrupted(model.num_timesteps, keeper.write()) from None
        keeper.write()
    return TrainingResult(path, model.num_timesteps, tuple(keeper.losses))


def environment_of(cell: Experiment, dataset: Dataset, device: torch.device, options: TrainingOptions) -> FederationEnv:
    """The experiment's federation with its one defense, as the attackers imagine it."""
    (defense,), (seed,), training = cell.defenses, cell.seeds, cell.training

    def initial(number: int) -> Tensor:
        """Another model for every episode, drawn as the experiment would: the policy shall serve for any."""
        return Task.of(build_model(replace(cell, seeds=(number,)), dataset)).initial()

    try:
        return FederationEnv(
            build_world(cell, dataset, device), defense.part, sampled=training.sampled, batch=training.batch,
            local_steps=training.local_steps, schedule=cell.schedule, partition=cell.data.partition,
            actions=options.actions, episode=options.episode, initial=initial, seed=derive(seed, "learning to attack"),
        )  # fmt: skip
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def learner(env: FederationEnv, options: TrainingOptions, seed: int) -> TD3:
    return TD3(
        "MlpPolicy",
        env,
        learning_rate=options.learning_rate,
        buffer_size=min(options.steps, 20_000),  # an observation is as long as the last layer: memory is the limit
        learning_starts=options.start,
        batch_size=options.batch,
        gamma=options.discount,
        action_noise=NormalActionNoise(np.zeros(2), np.full(2, options.noise)),
        policy_kwargs={"net_arch": list(options.net), "features_extractor_class": Balanced},
        seed=derive(seed, "policy") % 2**32,  # numpy takes no more
        device="cpu",  # the networks are small, and the same bits come out whatever trains the clients
    )


class Balanced(BaseFeaturesExtractor):
    """The last layer weighs no more than one number.

    Unscaled, its hundreds of inputs drown the action and the number of attackers, and move the actor so fast that tanh
    holds it in a corner before the critic knows anything.
    """

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, observation_space.shape[0])

    def forward(self, observations: Tensor) -> Tensor:
        return observations * self.scale(observations.shape[-1])

    @staticmethod
    def scale(n_observed: int) -> Tensor:
        scale = torch.full((n_observed,), (n_observed - 1) ** -0.5)
        scale[-1] = 1.0  # the number of attackers
        return scale


def policy_of(model: TD3, cell: Experiment, options: TrainingOptions) -> Policy:
    """The actor, without the library that trained it: scaling its input becomes part of its first layer."""
    first, *others = (layer for layer in model.actor.mu if isinstance(layer, nn.Linear))
    weights = [first.weight * Balanced.scale(first.in_features), *(layer.weight for layer in others)]
    layers = tuple(
        (weight.detach().clone(), layer.bias.detach().clone())
        for weight, layer in zip(weights, (first, *others), strict=True)
    )
    history = {
        "made by": f"cosdefense {__version__}",
        "experiment": cell.name,
        "against": describe(cell.defenses[0].part),
        "seed": cell.seeds[0],
        "decisions": model.num_timesteps,
    }
    return Policy(layers, options.actions, cell.training.sampled, history)


class _Keeper(BaseCallback):
    """Writes the policy now and then, and counts what the episodes brought."""

    def __init__(self, path: Path, cell: Experiment, options: TrainingOptions, progress: Progress) -> None:
        super().__init__()
        self.path, self.cell, self.options, self.progress = path, cell, options, progress
        self.losses: list[float] = []  # the mean of every episode
        self._episode: list[float] = []

    def _on_step(self) -> bool:
        self._episode.append(self.locals["infos"][0]["loss"])
        if bool(self.locals["dones"][0]):
            self.losses.append(mean(self._episode))
            self._episode.clear()
        self.progress(self.num_timesteps, self.losses[-1] if self.losses else None)
        if self.num_timesteps % WRITE_EVERY == 0:
            self.write()
        return True

    def write(self) -> bool:
        """Nothing before the first options: a policy that has learned nothing replaces no file."""
        learned = self.num_timesteps > self.options.start
        if learned and isinstance(self.model, TD3):
            write_atomically(self.path, policy_of(self.model, self.cell, self.options).to_bytes())
        return learned


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Stable-baselines3 seeds the global streams of Python, numpy and torch: leave them as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
