"""Everything before the first round: the world that a seed decides, and a dry run."""

from __future__ import annotations

import math
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
from ..core.experiment_folder import reading_from
from ..data import DATASETS, Dataset
from ..hooks import FLWBC, AdversarialTraining
from ..simulation.world import World
from ..training.batches import to_unit_range
from ..training.models import MODELS
from ..training.server_data import ServerData
from ..training.task import Task
from .experiment import Experiment

_recorded_task: dict[object, Task] = {}  # the first task of the model that was run last, at most one


class NeverReached(UserWarning):
    """A schedule whose attack or defense never starts."""


def build_model(cell: Experiment, dataset: Dataset) -> nn.Module:
    """The model that training starts from: decided by the seed."""
    (seed,), settings = cell.seeds, dict(cell.model)
    with reading_from(cell.source):
        build = lookup(MODELS, settings.pop("name"), nn.Module, "model")
    with use_seed(derive(seed, "model"), torch.device("cpu")):
        try:
            model: nn.Module = build(
                shape=tuple(dataset.train_inputs.shape[1:]), n_outputs=count_outputs(cell, dataset), **settings
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(f"model does not fit dataset {dataset.name}: {error}") from error
    return model


def count_outputs(cell: Experiment, dataset: Dataset) -> int:
    """How many outputs the model needs: one per class, one for two classes by their logit, or one per value."""
    if not dataset.classes:
        return math.prod(dataset.train_targets.shape[1:])
    return 1 if cell.training.loss == "binary-cross-entropy" and dataset.n_classes == 2 else dataset.n_classes


def build_world(cell: Experiment, dataset: Dataset, device: torch.device) -> World:
    """Which client owns which samples, which clients are malicious, and what they train: decided by the seed."""
    (seed,) = cell.seeds
    held, free = _held_out(len(dataset.train_targets), cell.data.trusted, seed)
    with reading_from(cell.source):  # which may define loss and optimizer
        task, trainer = _build_task(cell, dataset, device), cell.training.trainer
    try:
        world = World.of(
            task,
            dataset.train_inputs.to(device),
            dataset.train_targets.to(device),
            n_clients=cell.data.clients,
            malicious=cell.data.malicious,
            partition=cell.data.partition,
            trainer=trainer,
            seed=seed,
            n_classes=dataset.n_classes,
            rows=free,
            owners=dataset.train_clients,
        )
    except ValueError as error:
        raise ConfigError(f"data.partition: {error}") from error
    return replace(world, trusted_data=_server_data(cell, world, held))


def _build_task(cell: Experiment, dataset: Dataset, device: torch.device) -> Task:
    """The task of a run. On a GPU, runs of one model in one process share what was recorded for the first of them."""
    key = (cell.model, dataset.name, cell.training.loss, cell.training.bfloat16, device)
    # A model of the catalog has the same operations for every seed; one of the user's own may not.
    shares = device.type == "cuda" and dict(cell.model)["name"] in MODELS and dataset.name in DATASETS
    task = Task.of(
        build_model(cell, dataset).to(device),
        mean=dataset.mean,
        std=dataset.std,
        bfloat16=cell.training.bfloat16,
        fast_convolutions=cell.training.fast_convolutions,
        loss=cell.training.choose_loss(has_classes=bool(dataset.classes)),
        twin=_recorded_task.get(key) if shares else None,
    )
    if shares and task.twin is None:
        _recorded_task.clear()  # its CUDA graphs take memory
        _recorded_task[key] = task
    return task


def _held_out(n: int, n_held: int, seed: int) -> tuple[Int[Tensor, " held"], Int[Tensor, " free"]]:
    """Rows of the training set for the server, and the rest for the clients."""
    if n_held >= n:
        raise ConfigError(f"data.trusted must leave some of the {n} training samples to the clients, got {n_held}")
    order = torch.randperm(n, generator=generator(seed, "trusted"))
    return order[:n_held], order[n_held:].sort().values


def _server_data(cell: Experiment, world: World, held: Int[Tensor, " held"]) -> ServerData:
    (seed,) = cell.seeds
    shared = {
        client: own[torch.randperm(len(own), generator=generator(seed, "shared", client))[: cell.data.shared]]
        for client, own in enumerate(world.partition)
        if cell.data.shared
    }
    size = cell.training.batch
    sizes = sorted(len(own) for own in world.partition)
    steps = cell.training.local_work.count_steps_of(sizes[len(sizes) // 2])  # as a typical client
    return ServerData(world.task, world.trainer, steps, size, world.inputs, world.targets, held, shared)


def dry_run(experiment: Experiment, dataset: Dataset) -> None:
    """Find mistakes that only the data reveal before the first of many runs: an unknown layer, a missing class."""
    cell = next(experiment.cells())
    world = build_world(cell, dataset, torch.device("cpu"))
    cohort = build_trial_cohort(cell, world)
    clients = cohort.clients
    images, labels = world.draw_batches(clients[:1], 1, 1, generator(0))
    (defense,) = cell.defenses
    with _naming("training"):
        _check_training(cell, dataset, world)
    for attack in experiment.attacks:
        with _naming(f"attack {attack.label}"):
            attack.part.check_data(world.inputs, world.targets, world.n_classes)
            attack.part.poison(images, labels, world.n_classes, generator(0))
            attack.part.prepare_evaluation(images.flatten(0, 2), labels.flatten(0, 2), world.n_classes)
            informed, state = attack.part.with_defense(defense.part, defense.part.init(), attack.part.init())
            informed.forge(cohort, clients < 1, state)
        if attack.part != Attack() and experiment.schedule.attack_start >= experiment.training.rounds:
            warnings.warn("the attack starts after the last round", NeverReached, stacklevel=2)
    for defense in experiment.defenses:
        with _naming(f"defense {defense.label}"):
            for hook in defense.part.hooks:
                hook.check_data(world.inputs, world.targets, world.n_classes)
            defense.part(cohort, defense.part.init())
        if (
            experiment.training.local_steps < 2
            and not experiment.training.local_epochs
            and any(isinstance(hook, FLWBC) for hook in defense.part.hooks)
        ):
            warnings.warn("FL-WBC acts from the second local step on; local_steps is 1", NeverReached, stacklevel=2)
    if experiment.schedule.defense_start >= experiment.training.rounds:
        warnings.warn("the defense starts after the last round", NeverReached, stacklevel=2)


def build_trial_cohort(cell: Experiment, world: World) -> Cohort:
    """A round in which nobody changes anything: enough to see whether a defense can judge such clients."""
    clients = torch.arange(cell.training.sampled)
    updates = torch.zeros(cell.training.sampled, world.task.layout.size)
    trusted = world.trusted_data
    if isinstance(trusted, ServerData):
        trusted = replace(trusted, steps=1, batch=1)  # enough to see whether it exists
    return Cohort.of(updates, world.task.initial(), world.task.layout, clients, trusted_data=trusted)


def _check_training(cell: Experiment, dataset: Dataset, world: World) -> None:
    """Loss and metrics of one sample, so that outputs and targets that do not fit are found before the first round."""
    training = cell.training
    if training.adversarial is not None:
        AdversarialTraining(training.adversarial).check_data(world.inputs, world.targets, world.n_classes)
    inputs, targets = to_unit_range(world.inputs[:2]), world.targets[:2]
    try:
        outputs = world.task.logits(world.task.initial(), inputs)
        loss = world.task.loss_function(outputs, targets)
        if loss.numel() != 1:
            raise ValueError(f"loss must be one number for a batch, got shape {tuple(loss.shape)}")
        with reading_from(cell.source):
            for metric in training.list_metrics(has_classes=bool(dataset.classes)):
                float(metric.measure(outputs, targets))
    except (RuntimeError, IndexError, TypeError) as error:
        shapes = f"inputs {tuple(inputs.shape)} of {inputs.dtype}, targets {tuple(targets.shape)} of {targets.dtype}"
        raise ValueError(f"model, loss and metrics do not fit dataset {dataset.name} ({shapes}): {error}") from error


@contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TooFewClients, MissingTrustedData) as error:
        raise ConfigError(f"{what}: {error}") from error
