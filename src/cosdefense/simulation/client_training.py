"""The training of a round's clients: honest ones as the defense asks, malicious ones as the attack wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attacks import Attack, TrainingPlan
from ..core import ClientHook, State, generator
from ..ops import upload
from ..training.executor import train_clients
from ..training.local_sgd import LocalSGD
from .world import World

CHUNK, GPU_CHUNK = 128 << 20, 512 << 20  # bytes of images, or of new updates, at a time: rounds may be large


@dataclass(frozen=True)
class LocalWork:
    """How much a client trains in one round: so many steps, or so many passes over its own samples."""

    batch: int
    steps: int = 1
    epochs: int | None = None  # in the place of steps

    def count_steps(self, world: World, clients: Int[Tensor, " n"]) -> list[int]:
        """The steps of each client. The last batch of several passes is filled up with samples of one more."""
        if self.epochs is None:
            return [self.steps] * len(clients)
        return [self.count_steps_of(len(world.partition[client])) for client in clients.tolist()]

    def count_steps_of(self, n_samples: int) -> int:
        """The steps of a client with so many samples."""
        return self.steps if self.epochs is None else max(1, -(-self.epochs * n_samples // self.batch))


def show_model(
    world: World,
    attack: Attack,
    state: State,
    params: Float[Tensor, " d"],
    malicious_clients: Int[Tensor, " m"],
    *,
    local: LocalWork,
    seed: int,
    number: int,
) -> tuple[Attack, State]:
    """Give the attack the global model and samples of its clients in round `number`, if it needs them."""
    if not attack.needs_model or not len(malicious_clients):
        return attack, state
    steps = max(local.count_steps(world, malicious_clients))
    rows = world.draw_rows(malicious_clients, steps, local.batch, generator(seed, "model", number))
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
    local: LocalWork,
    seed: int,
    number: int,
) -> None:
    """Fill in the update of every client of round `number`. Malicious clients do not run the defense's hooks."""
    n_malicious, plan = int(malicious.sum()), TrainingPlan()
    if n_malicious:
        plan = attack.plan_training(params, world.task.layout, n_malicious, attack_state)
    streams = {name: generator(seed, name, number) for name in ("batches", "poison", "effort")}
    train = partial(_train_alike, world, attack, plan, hooks, params, batch=local.batch, streams=streams)
    steps = local.count_steps(world, clients)
    if len(set(steps)) == 1:
        return train(updates, clients, malicious, steps=steps[0])
    for count in sorted(set(steps)):  # clients that make as many steps train together
        places = torch.tensor([place for place, own in enumerate(steps) if own == count])
        part = updates[places]
        train(part, clients[places], malicious[places], steps=count)
        updates[places] = part
    return None


def _train_alike(
    world: World,
    attack: Attack,
    plan: TrainingPlan,
    hooks: tuple[ClientHook, ...],
    params: Float[Tensor, " d"],
    updates: Float[Tensor, "n d"],
    clients: Int[Tensor, " n"],
    malicious: Bool[Tensor, " n"],
    *,
    steps: int,
    batch: int,
    streams: Mapping[str, torch.Generator],
) -> None:
    """The same for clients that all make so many steps."""
    train = partial(_train_in_chunks, updates, world, params, clients)
    rows = world.draw_rows(clients, steps, batch, streams["batches"])
    honest_trainer = replace(world.trainer, hooks=(*world.trainer.hooks, *hooks))
    everyone = torch.arange(len(clients))
    if not bool(malicious.any()):
        return train(honest_trainer, everyone, rows)
    honest_places, malicious_places = everyone[~malicious], everyone[malicious]
    if not attack.needs_local_training and len(honest_places) > 0:
        updates[upload(malicious_places, updates.device)] = 0.0
        return train(honest_trainer, honest_places, rows[honest_places])
    poison = None
    if type(attack).poison is not Attack.poison:  # else the batches would be copied to change nothing
        poison = partial(attack.poison, n_classes=world.n_classes, rng=streams["poison"])
    if not hooks and plan == TrainingPlan():
        return train(honest_trainer, everyone, rows, malicious, poison)
    malicious_rows = rows[malicious_places]
    if plan.steps not in (None, steps):
        malicious_rows = world.draw_rows(clients[malicious], plan.steps, batch, streams["effort"])
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
    largest = max(rows[0].numel() * world.inputs[0].numel(), len(params))
    for part in torch.split(torch.arange(len(places)), max(1, budget // (4 * largest))):
        images, labels = world.gather(rows[part])
        if malicious is not None and poison is not None and bool(malicious[part].any()):
            poisoned = upload(malicious[part].nonzero().flatten(), labels.device)
            who = clients[places[part]][malicious[part]]
            images[poisoned], labels[poisoned] = poison(images[poisoned], labels[poisoned], clients=who)
        where = upload(places[part], updates.device)
        updates[where] = train_clients(world.task, trainer, params, images, labels)
