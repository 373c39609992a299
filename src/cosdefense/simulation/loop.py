"""Federated learning with some liars in it, round by round."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attacks import Attack, TrainingPlan
from ..catalog.presets import fedavg
from ..core import (
    ClientHook,
    Cohort,
    Defense,
    State,
    Verdict,
    derive,
    generator,
    seeded,
)
from ..training.executor import train_clients
from ..training.local_sgd import LocalSGD
from .oracle import Oracle
from .profiling import Profiler
from .schedule import Schedule
from .update_buffer import room
from .world import World

CHUNK, GPU_CHUNK = 128 << 20, 512 << 20  # bytes of pixels, or of fresh updates, at a time: rounds may be large


class SkippedRound(RuntimeWarning):
    """A round left the model as it was, because a rule had too few clients to work with."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that the next round depends on, the seed aside."""

    next_round: int
    params: Float[Tensor, " d"]
    defense_state: State
    attack_state: State


@dataclass(frozen=True, eq=False)
class Round:
    """What happened, and where it leaves the model."""

    number: int
    clients: Int[Tensor, " n"]
    malicious: Bool[Tensor, " n"]  # who lied in this round
    defended: bool
    verdict: Verdict
    after: Snapshot
    seconds: Mapping[str, float]  # by phase
    peak_memory: Mapping[str, int]  # bytes, by phase


def simulate(
    world: World,
    attack: Attack,
    defense: Defense,
    *,
    rounds: int,
    sampled: int,
    batch: int,
    seed: int,
    local_steps: int = 1,
    schedule: Schedule = Schedule(),
    resume: Snapshot | None = None,
    max_update_memory: int | None = None,
) -> Iterator[Round]:
    """One federation, as an iterator: stop whenever you like, go on from any round's `after`.

    Updates that take more than `max_update_memory` bytes (None: half of what is free) are kept in a file.
    """
    device = world.labels.device
    defense = _initiated(defense, world)
    now = resume or Snapshot(0, world.task.initial().to(device), defense.init(), attack.init())
    for number in range(now.next_round, rounds):
        meter, params = Profiler(device), now.params
        # who takes part
        clients = world.sample(sampled, generator(seed, "sampling", number))
        acting = schedule.attacks(number) and attack != Attack()
        liars = world.malicious[clients] & acting
        # they train
        with meter("train"), seeded(derive(seed, "training", number), device):
            hooks = defense.hooks if schedule.defends(number) else ()
            updates = room(sampled, params, max_update_memory)
            _train(updates, world, attack, hooks, now, clients, liars, local_steps, batch, seed)
        lying = liars.nonzero().flatten().tolist()
        clients, liars = clients.to(device), liars.to(device)
        cohort = Cohort.of(
            updates,
            params,
            world.task.layout,
            clients,
            seed=derive(seed, "attack", number),
            trusted_data=world.trusted_data,
        )
        # liars replace what they send
        attack_state = now.attack_state
        with meter("attack"):
            if acting:
                informed, attack_state = attack.with_defense(defense, now.defense_state, attack_state)
                forged, attack_state = informed.forge(cohort, liars, attack_state)
                for row in lying:  # in place: there may be no room for all rows twice
                    updates[row] = forged[row]
        # the server judges, combines and moves on
        cohort = replace(cohort, seed=derive(seed, "defense", number))
        with meter("defend"):
            verdict, defense_state = _run_defense(defense, cohort, now.defense_state, schedule.defends(number))
            params = params + verdict.update
        now = Snapshot(number + 1, params, defense_state, attack_state)
        yield Round(number, clients, liars, schedule.defends(number), verdict, now, meter.seconds, meter.peak_memory)


def _train(
    updates: Float[Tensor, "n d"],
    world: World,
    attack: Attack,
    hooks: tuple[ClientHook, ...],
    now: Snapshot,
    clients: Int[Tensor, " n"],
    liars: Bool[Tensor, " n"],
    steps: int,
    size: int,
    seed: int,
) -> None:
    """Fill in what each client finds: the honest train as the defense asks them to, liars as they please."""
    train = partial(_train_in_chunks, updates, world, now.params)
    rows = world.drawn(clients, steps, size, generator(seed, "batches", now.next_round))
    honest = replace(world.trainer, hooks=(*world.trainer.hooks, *hooks))
    everybody = torch.arange(len(clients))
    if not bool(liars.any()):
        return train(honest, everybody, rows)
    good, bad = everybody[~liars], everybody[liars]
    if not attack.needs_local_training and len(good) > 0:
        updates[bad] = 0.0
        return train(honest, good, rows[good])
    plan = attack.plan_training(now.params, world.task.layout, len(bad), now.attack_state)
    poison = partial(attack.poison, n_classes=world.n_classes, rng=generator(seed, "poison", now.next_round))
    if not hooks and plan == TrainingPlan():
        return train(honest, everybody, rows, liars, poison)
    spoiled = rows[bad]
    if plan.steps not in (None, steps):
        spoiled = world.drawn(clients[liars], plan.steps, size, generator(seed, "effort", now.next_round))
    train(replace(world.trainer, ascend=plan.ascend), bad, spoiled, liars[bad], poison)
    if len(good) > 0:
        train(honest, good, rows[good])
    return None


def _train_in_chunks(
    updates: Float[Tensor, "n d"],
    world: World,
    params: Float[Tensor, " d"],
    trainer: LocalSGD,
    who: Int[Tensor, " m"],
    rows: Int[Tensor, "m steps size"],
    liars: Bool[Tensor, " m"] | None = None,
    poison: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Train these clients of the round on these samples, so many at a time that neither fills the memory."""
    budget = CHUNK if updates.device.type == "cpu" else GPU_CHUNK
    largest = max(rows[0].numel() * world.images[0].numel(), len(params))
    for part in torch.split(torch.arange(len(who)), max(1, budget // (4 * largest))):
        images, labels = world.gathered(rows[part])
        if liars is not None and poison is not None and bool(liars[part].any()):
            lying = liars[part].to(labels.device)
            images[lying], labels[lying] = poison(images[lying], labels[lying])
        updates[who[part]] = train_clients(world.task, trainer, params, images, labels)


def _run_defense(defense: Defense, cohort: Cohort, state: State, defending: bool) -> tuple[Verdict, State]:
    if not defending:
        plain = fedavg()
        return plain(cohort, plain.init())[0], state
    judged, verdict, state = defense.run_round(cohort, state)
    if judged.too_few_clients:
        warnings.warn(f"round skipped: {verdict.skipped}", SkippedRound, stacklevel=3)
    return verdict, state


def _initiated(defense: Defense, world: World) -> Defense:
    liars = world.malicious.nonzero().flatten()
    told = tuple(part.with_malicious(liars) if isinstance(part, Oracle) else part for part in defense.filters)
    return replace(defense, filters=told)
