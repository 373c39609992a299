"""Everything before the first round: the device, the world that a seed decides, and a rehearsal."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..attacks import Attack
from ..catalog.options import ConfigError
from ..catalog.registry import lookup
from ..core import Cohort, MissingTrustedData, TooFewClients, derive, generator, use_seed
from ..data.datasets import Dataset
from ..hooks import FLWBC
from ..ops import fraction_of
from ..simulation.world import World
from ..training.models import MODELS
from ..training.server_data import ServerData
from ..training.task import Task
from .experiment import Experiment

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 512 << 20  # bytes at the end of a thread's heap that are not given back
KEPT_PIECE = 32 << 20  # the largest piece that comes from the heap: the most that glibc accepts


class NeverReached(UserWarning):
    """A schedule whose attack or defense never starts."""


def choose_device(name: str = "auto") -> torch.device:
    """The device to train on, set up so that the same seed gives the same bits.

    For processes that are ours: it is the process that is set up, on a CPU how its memory is managed.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):  # others lack float64, which the rules need
        raise ConfigError(f"device must be auto, cpu or cuda, got {name!r}")
    if device.type == "cuda":
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name} was asked for, but torch finds {torch.cuda.device_count()} CUDA GPUs here"
            )
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False  # ten bits: too few for the same verdicts as on a CPU, unless asked for
    else:
        _keep_memory()
    return device


def _keep_memory() -> None:
    """What a client's step gives back stays with the process for the next one: fresh pages cost a tenth of a round."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_PIECE)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def build_model(cell: Experiment, dataset: Dataset) -> nn.Module:
    """The model that training starts from: decided by the seed."""
    (seed,), settings = cell.seeds, dict(cell.model)
    build = lookup(MODELS, settings.pop("name"), "model")
    with use_seed(derive(seed, "model"), torch.device("cpu")):
        try:
            model: nn.Module = build(
                shape=tuple(dataset.train_images.shape[1:]), n_classes=dataset.n_classes, **settings
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(f"model does not fit dataset {dataset.name}: {error}") from error
    return model


def build_world(cell: Experiment, dataset: Dataset, device: torch.device) -> World:
    """Who owns what, who lies, and what they train: decided by the seed alone."""
    (seed,) = cell.seeds
    malicious = torch.zeros(cell.data.clients, dtype=torch.bool)
    n_malicious = fraction_of(cell.data.malicious, cell.data.clients)
    malicious[torch.randperm(cell.data.clients, generator=generator(seed, "identities"))[:n_malicious]] = True
    held, free = _held_out(len(dataset.train_labels), cell.data.trusted, seed)
    try:
        owned = cell.data.partition(
            dataset.train_labels[free], dataset.n_classes, cell.data.clients, derive(seed, "partition")
        )
    except ValueError as error:
        raise ConfigError(f"data.partition: {error}") from error
    world = World(
        task=Task.of(
            build_model(cell, dataset).to(device),
            mean=dataset.mean,
            std=dataset.std,
            bfloat16=cell.training.bfloat16,
            fast_convolutions=cell.training.fast_convolutions,
        ),
        images=dataset.train_images.to(device),
        labels=dataset.train_labels.to(device),
        partition=[free[own] for own in owned],
        malicious=malicious,
        n_classes=dataset.n_classes,
        trainer=cell.training.trainer,
    )
    return (
        replace(world, trusted_data=_server_data(cell, world, held)) if cell.data.trusted + cell.data.shared else world
    )


def _held_out(n: int, n_held: int, seed: int) -> tuple[Int[Tensor, " held"], Int[Tensor, " free"]]:
    """Rows of the training set for the server, and the rest for the clients. The test set is nobody's."""
    if n_held >= n:
        raise ConfigError(f"data.trusted must leave something of {n} training samples to the clients, got {n_held}")
    order = torch.randperm(n, generator=generator(seed, "trusted"))
    return order[:n_held], order[n_held:].sort().values


def _server_data(cell: Experiment, world: World, held: Int[Tensor, " held"]) -> ServerData:
    (seed,) = cell.seeds
    shared = {
        client: own[torch.randperm(len(own), generator=generator(seed, "shared", client))[: cell.data.shared]]
        for client, own in enumerate(world.partition)
        if cell.data.shared
    }
    steps, size = cell.training.local_steps, cell.training.batch
    return ServerData(world.task, world.trainer, steps, size, world.images, world.labels, held, shared)


def dry_run(experiment: Experiment, dataset: Dataset) -> None:
    """Find what only the data reveals, before the first of many runs: an unknown layer, a class that does not exist."""
    cell = next(experiment.cells())
    world = build_world(cell, dataset, torch.device("cpu"))
    clients = torch.arange(cell.training.sampled)
    updates = torch.zeros(cell.training.sampled, world.task.layout.size)
    trusted = world.trusted_data
    if isinstance(trusted, ServerData):
        trusted = replace(trusted, steps=1, batch=1)  # enough to see whether it is there
    cohort = Cohort.of(updates, world.task.initial(), world.task.layout, clients, trusted_data=trusted)
    images, labels = world.draw_batches(clients[:1], 1, 1, generator(0))
    (defense,) = cell.defenses
    for attack in experiment.attacks:
        with _named(f"attack {attack.label}"):
            attack.part.poison(images, labels, world.n_classes, generator(0))
            informed, state = attack.part.with_defense(defense.part, defense.part.init(), attack.part.init())
            informed.forge(cohort, clients < 1, state)
        if attack.part != Attack() and experiment.schedule.attack_start >= experiment.training.rounds:
            warnings.warn("the attack starts after the last round", NeverReached, stacklevel=2)
    for defense in experiment.defenses:
        with _named(f"defense {defense.label}"):
            defense.part(cohort, defense.part.init())
        if experiment.training.local_steps < 2 and any(isinstance(hook, FLWBC) for hook in defense.part.hooks):
            warnings.warn("FL-WBC acts from the second local step on; local_steps is 1", NeverReached, stacklevel=2)
    if experiment.schedule.defense_start >= experiment.training.rounds:
        warnings.warn("the defense starts after the last round", NeverReached, stacklevel=2)


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TooFewClients, MissingTrustedData) as error:
        raise ConfigError(f"{what}: {error}") from error
