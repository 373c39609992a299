"""Training with TD3 from stable-baselines3. The result is a policy file, which does not need that library.

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
from ..data import Dataset
from ..runs.experiment import Experiment
from ..runs.files import PUBLIC, write_atomically
from ..runs.prepare import build_model, build_world
from ..training.task import Task
from . import Progress, TrainingInterrupted, TrainingOptions, TrainingResult
from .environment import FederationEnv

WRITE_EVERY = 100  # decisions


def train(
    experiment: Experiment,
    dataset: Dataset,
    device: torch.device,
    path: Path,
    options: TrainingOptions,
    progress: Progress,
) -> TrainingResult:
    env = build_environment(experiment, dataset, device, options)
    with _preserve_random_state():
        model = build_learner(env, options, experiment.seeds[0])
        writer = _PolicyWriter(path, experiment, options, progress)
        try:
            model.learn(options.steps, callback=writer)
        except KeyboardInterrupt:
            raise TrainingInterrupted(model.num_timesteps, writer.write()) from None
        writer.write()
    return TrainingResult(path, model.num_timesteps, tuple(writer.losses))


def build_environment(
    experiment: Experiment, dataset: Dataset, device: torch.device, options: TrainingOptions
) -> FederationEnv:
    """Build the environment from an experiment with one defense and one seed."""
    (defense,), (seed,), training = experiment.defenses, experiment.seeds, experiment.training

    def initial(number: int) -> Tensor:
        """A different model for every episode, so that the policy does not depend on one initialization."""
        return Task.of(build_model(replace(experiment, seeds=(number,)), dataset)).initial()

    try:
        return FederationEnv(
            build_world(experiment, dataset, device), defense.part, sampled=training.sampled, batch=training.batch,
            local_steps=training.local_steps, schedule=experiment.schedule, partition=experiment.data.partition,
            actions=options.actions, episode_length=options.episode_length, initial=initial,
            seed=derive(seed, "learning to attack"),
        )  # fmt: skip
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_learner(env: FederationEnv, options: TrainingOptions, seed: int) -> TD3:
    return TD3(
        "MlpPolicy",
        env,
        learning_rate=options.learning_rate,
        buffer_size=min(options.steps, 20_000),  # limited by memory: an observation holds the last layer
        learning_starts=options.learning_starts,
        batch_size=options.batch_size,
        gamma=options.discount,
        action_noise=NormalActionNoise(np.zeros(2), np.full(2, options.exploration_noise)),
        policy_kwargs={"net_arch": list(options.hidden_layers), "features_extractor_class": ScaledLastLayer},
        seed=derive(seed, "policy") % 2**32,  # the limit of numpy
        device="cpu",  # the networks are small, and the result does not depend on the device of the clients
    )


class ScaledLastLayer(BaseFeaturesExtractor):
    """Scales the last layer in the observation to the influence of a single number.

    Without scaling, its hundreds of inputs dominate the action and the number of attackers, and the actor saturates its
    tanh before the critic has learned anything.
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


def extract_policy(model: TD3, experiment: Experiment, options: TrainingOptions) -> Policy:
    """Copy the actor. The scaling of its input becomes part of its first layer."""
    first, *others = (layer for layer in model.actor.mu if isinstance(layer, nn.Linear))
    weights = [first.weight * ScaledLastLayer.scale(first.in_features), *(layer.weight for layer in others)]
    layers = tuple(
        (weight.detach().clone(), layer.bias.detach().clone())
        for weight, layer in zip(weights, (first, *others), strict=True)
    )
    history = {
        "made by": f"cosdefense {__version__}",
        "experiment": experiment.name,
        "against": describe(experiment.defenses[0].part),
        "seed": experiment.seeds[0],
        "decisions": model.num_timesteps,
    }
    return Policy(layers, options.actions, experiment.training.sampled, history)


class _PolicyWriter(BaseCallback):
    """Writes the policy at regular intervals and records the mean loss of every episode."""

    def __init__(self, path: Path, experiment: Experiment, options: TrainingOptions, progress: Progress) -> None:
        super().__init__()
        self.path, self.experiment, self.options, self.progress = path, experiment, options, progress
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
        """Write the policy, unless learning has not started: an untrained policy must not replace a file."""
        has_learned = self.num_timesteps > self.options.learning_starts
        if has_learned and isinstance(self.model, TD3):
            write_atomically(self.path, extract_policy(self.model, self.experiment, self.options).to_bytes(), PUBLIC)
        return has_learned


@contextmanager
def _preserve_random_state() -> Iterator[None]:
    """Restore the global random states of Python, numpy and torch, which stable-baselines3 seeds."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
