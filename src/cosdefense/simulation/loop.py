"""`simulate`: federated learning with some malicious clients, round by round."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attacks import Attack
from ..catalog.presets import fedavg
from ..core import Cohort, Defense, State, Verdict, derive, generator, use_seed
from ..ops import upload
from .client_training import LocalWork, show_model, train_round
from .oracle import Oracle
from .profiling import Profiler
from .schedule import Schedule
from .sending import Memories, empty_memories, send_updates
from .update_buffer import allocate_updates
from .world import World

Weighting = Literal["equal", "samples"]


class SkippedRound(RuntimeWarning):
    """A round left the model as it was, because a rule needs more clients than took part."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything that the next round depends on, except the seed."""

    next_round: int
    params: Float[Tensor, " d"]
    defense_state: State
    attack_state: State
    client_memories: Memories = ()  # of honest clients, for the defense's hooks


@dataclass(frozen=True, eq=False)
class Round:
    """What happened in a round, and the state after it."""

    number: int
    clients: Int[Tensor, " n"]
    malicious: Bool[Tensor, " n"]  # who attacked in this round
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
    local_epochs: int | None = None,
    weighting: Weighting = "equal",
    schedule: Schedule = Schedule(),
    resume: Snapshot | None = None,
    max_update_memory: int | None = None,
) -> Iterator[Round]:
    """Simulate a federation and yield its rounds. Stop at any time; resume from any round's `after`.

    In each round `sampled` clients take part; each trains `local_steps` steps on batches of `batch` samples, or
    `local_epochs` passes over its own samples. By `weighting` all clients count the same, or by their samples.
    Updates of more than `max_update_memory` bytes (None: half of the free memory) are kept in a file.
    """
    device, local = world.targets.device, LocalWork(batch, local_steps, local_epochs)
    attack.check_data(world.inputs, world.targets, world.n_classes)
    for hook in defense.hooks:
        hook.check_data(world.inputs, world.targets, world.n_classes)
    defense = _inform_oracles(defense, world)
    now = resume or Snapshot(0, world.task.initial().to(device), defense.init(), attack.init())
    memories = now.client_memories or empty_memories(defense.hooks)
    for number in range(now.next_round, rounds):
        profiler, params, attack_state = Profiler(device), now.params, now.attack_state
        attacking = schedule.attacks(number) and attack != Attack()
        defending = schedule.defends(number)
        # Sample the clients.
        clients = world.sample_clients(sampled, generator(seed, "sampling", number))
        malicious = world.malicious[clients] & attacking
        # They train.
        with profiler.measure("train"), use_seed(derive(seed, "training", number), device):
            hooks = defense.hooks if defending else ()
            updates = allocate_updates(sampled, params, max_update_memory)
            poisoning, attack_state = show_model(
                world, attack, attack_state, params, clients[malicious],
                local=local, seed=seed, number=number,
            )  # fmt: skip
            train_round(
                updates, world, poisoning, attack_state, hooks, params, clients, malicious,
                local=local, seed=seed, number=number,
            )  # fmt: skip
            if defending:
                memories = send_updates(updates, clients, ~malicious, hooks, memories, world.task.layout)
        malicious_rows = malicious.nonzero().flatten().tolist()
        cohort = Cohort.of(
            updates, params, world.task.layout, clients, weights=_count_samples(world, clients, weighting),
            seed=derive(seed, "attack", number), trusted_data=world.trusted_data,
        )  # fmt: skip
        clients, malicious = cohort.clients, upload(malicious, device)
        # Malicious clients replace their updates.
        with profiler.measure("attack"):
            if attacking:
                informed, attack_state = attack.with_defense(defense.rehearsal, now.defense_state, attack_state)
                forged, attack_state = informed.forge(cohort, malicious, attack_state)
                scale = schedule.scale(number)
                for row in malicious_rows:  # in place: there may be no memory for a second copy of all rows
                    updates[row] = forged[row] if scale == 1 else scale * forged[row]
        # The server judges the updates, combines them and moves the model.
        cohort = replace(cohort, seed=derive(seed, "defense", number))
        with profiler.measure("defend"):
            verdict, defense_state = _defend(defense, defending, cohort, now.defense_state)
            params = params + verdict.update
        now = Snapshot(number + 1, params, defense_state, attack_state, memories)
        yield Round(number, clients, malicious, defending, verdict, now, profiler.seconds, profiler.peak_memory)


def _count_samples(world: World, clients: Int[Tensor, " n"], weighting: Weighting) -> Tensor | None:
    """How much each client counts, 1 on average; None: all the same."""
    if weighting == "equal":
        return None
    counts = torch.tensor([len(world.partition[client]) for client in clients.tolist()], dtype=torch.float64)
    return counts / counts.mean()


def _defend(defense: Defense, defending: bool, cohort: Cohort, state: State) -> tuple[Verdict, State]:
    """Apply the defense, or the plain mean in rounds without one. Buffers are combined in the same way in both."""
    if not defending:
        mean = replace(fedavg(), buffers=defense.buffers)
        return mean(cohort, mean.init())[0], state
    judged, verdict, state = defense.run_round(cohort, state)
    if judged.too_few_clients:
        warnings.warn(f"round skipped: {verdict.skipped}", SkippedRound, stacklevel=3)
    return verdict, state


def _inform_oracles(defense: Defense, world: World) -> Defense:
    """Tell filters that are oracles which clients are malicious."""
    malicious = world.malicious.nonzero().flatten()
    if not any(isinstance(part, Oracle) for part in defense.filters):
        return defense
    filters = tuple(part.with_malicious(malicious) if isinstance(part, Oracle) else part for part in defense.filters)
    return replace(defense, filters=filters)
