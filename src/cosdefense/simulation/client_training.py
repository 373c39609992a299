"""The training of a round's clients: honest ones as the defense asks, malicious ones as the attack wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attacks import Attack, TrainingPlan
from ..core import ClientHook, State, generator
from ..training.executor import train_clients
from ..training.local_sgd import LocalSGD
from .world import World

CHUNK, GPU_CHUNK = 128 << 20, 512 << 20  # bytes of images, or of new updates, at a time: rounds may be large


def show_model(
    world: World,
    attack: Attack,
    state: State,
    params: Float[Tensor, " d"],
    malicious_clients: Int[Tensor, " m"],
    *,
    steps: int,
    batch: int,
    seed: int,
    number: int,
) -> tuple[Attack, State]:
    """Give the attack the global model and samples of its clients in round `number`, if it needs them."""
    if not attack.needs_model or not len(malicious_clients):
        return attack, state
    rows = world.draw_rows(malicious_clients, steps, batch, generator(seed, "model", number))
    images, labels = world.gather(rows)
    return attack.with_model(partial(world.task.loss, params), images.flatten(0, 2), labels.flatten(0, 2), state)


def train_round(
    updates: Float[Tensor, "n d"],
    world: World,
    attack: Attack,
    attack_state: State,
    hooks: tuple[ClientHook, ...],
    params: Float[Tensor, " d"],
    clients: Int[Tensor, " n"],
    malicious: Bool[Tensor, " n"],
    *,
    steps: int,
    batch: int,
    seed: int,
    number: int,
) -> None:
    """Fill in the update of every client of round `number`. Malicious clients do not run the defense's hooks."""
    train = partial(_train_in_chunks, updates, world, params, clients)
    rows = world.draw_rows(clients, steps, batch, generator(seed, "batches", number))
    honest_trainer = replace(world.trainer, hooks=(*world.trainer.hooks, *hooks))
    everyone = torch.arange(len(clients))
    if not bool(malicious.any()):
        return train(honest_trainer, everyone, rows)
    honest_places, malicious_places = everyone[~malicious], everyone[malicious]
    if not attack.needs_local_training and len(honest_places) > 0:
        updates[malicious_places] = 0.0
        return train(honest_trainer, honest_places, rows[honest_places])
    plan = attack.plan_training(params, world.task.layout, len(malicious_places), attack_state)
    poison = partial(attack.poison, n_classes=world.n_classes, rng=generator(seed, "poison", number))
    if not hooks and plan == TrainingPlan():
        return train(honest_trainer, everyone, rows, malicious, poison)
    malicious_rows = rows[malicious_places]
    if plan.steps not in (None, steps):
        malicious_rows = world.draw_rows(clients[malicious], plan.steps, batch, generator(seed, "effort", number))
    malicious_trainer = replace(world.trainer, ascend=plan.ascend, hooks=(*world.trainer.hooks, *plan.hooks))
    train(malicious_trainer, malicious_places, malicious_rows, malicious[malicious_places], poison)
    if len(honest_places) > 0:
        train(honest_trainer, honest_places, rows[honest_places])
    return None


def _train_in_chunks(
    updates: Float[Tensor, "n d"],
    world: World,
    params: Float[Tensor, " d"],
    clients: Int[Tensor, " n"],
    trainer: LocalSGD,
    places: Int[Tensor, " m"],
    rows: Int[Tensor, "m steps size"],
    malicious: Bool[Tensor, " m"] | None = None,
    poison: Callable[..., tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Train the clients at these places of the round, so many at a time that their images stay within the chunk."""
    budget = CHUNK if updates.device.type == "cpu" else GPU_CHUNK
    largest = max(rows[0].numel() * world.images[0].numel(), len(params))
    for part in torch.split(torch.arange(len(places)), max(1, budget // (4 * largest))):
        images, labels = world.gather(rows[part])
        if malicious is not None and poison is not None and bool(malicious[part].any()):
            poisoned = malicious[part].to(labels.device)
            who = clients[places[part]][malicious[part]]
            images[poisoned], labels[poisoned] = poison(images[poisoned], labels[poisoned], clients=who)
        updates[places[part]] = train_clients(world.task, trainer, params, images, labels)
