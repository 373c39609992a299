"""Federated learning with some liars in it, round by round."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .attacks import Attack, Effort
from .batches import Pixels, draw, pixels
from .client import LocalSGD, train_clients
from .cohort import Cohort, TooFewClients, TrustedData
from .defense import ClientHook, Defense, Filter, State, Verdict
from .meter import Meter
from .randomness import derive, generator, seeded
from .recipes import fedavg
from .task import Task


class SkippedRound(RuntimeWarning):
    """A round left the model as it was, because a rule had too few clients to work with."""


@dataclass(frozen=True, eq=False)
class World:
    """Everything that is true whether or not anyone attacks or defends."""

    task: Task
    images: Pixels  # all training images, once, on the device where training happens
    labels: Int[Tensor, " m"]
    partition: Sequence[Int[Tensor, " _"]]  # the rows each client owns
    malicious: Bool[Tensor, " clients"]  # fixed identities
    n_classes: int
    trainer: LocalSGD = LocalSGD()
    trusted_data: TrustedData | None = None

    def sample(self, n: int, rng: torch.Generator) -> Int[Tensor, " n"]:
        """Who takes part: uniformly without replacement, drawn again while all of them are malicious."""
        n_clients = len(self.partition)
        if not 1 <= n <= n_clients:
            raise ValueError(f"1 to {n_clients} clients can be sampled, not {n}")
        clients = torch.randperm(n_clients, generator=rng)[:n]
        avoidable = not bool(self.malicious.all()) and n <= int(self.malicious.sum())
        while avoidable and bool(self.malicious[clients].all()):
            clients = torch.randperm(n_clients, generator=rng)[:n]
        return clients

    def batches(
        self, clients: Int[Tensor, " n"], steps: int, size: int, rng: torch.Generator
    ) -> tuple[Float[Tensor, "n steps size *shape"], Int[Tensor, "n steps size"]]:
        """Every client's own samples, reshuffled whenever they have all been used."""
        rows = torch.stack([draw(self.partition[client], steps * size, rng) for client in clients.tolist()])
        rows = rows.view(len(clients), steps, size).to(self.labels.device)
        return pixels(self.images[rows]), self.labels[rows]


@dataclass(frozen=True)
class Schedule:
    """When attackers attack and the defense defends; before that everybody is honest and the mean is taken."""

    attack_start: int = 0
    attack_stop: int | None = None  # the first round without attack again
    defense_start: int = 0

    def __post_init__(self) -> None:
        if self.attack_start < 0 or self.defense_start < 0:
            raise ValueError(f"rounds count from 0, got {min(self.attack_start, self.defense_start)}")
        if self.attack_stop is not None and self.attack_stop < self.attack_start:
            raise ValueError(f"attack_stop must not come before attack_start, got {self.attack_stop}")

    def attacks(self, number: int) -> bool:
        return self.attack_start <= number and (self.attack_stop is None or number < self.attack_stop)

    def defends(self, number: int) -> bool:
        return self.defense_start <= number


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


class Oracle(Filter):
    """A filter that is told the truth. Only a simulator can do that; the name of every such class says it."""

    @abstractmethod
    def told(self, malicious: Int[Tensor, " liars"]) -> Filter:
        """The same filter, knowing these identities."""


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
) -> Iterator[Round]:
    """One federation, as an iterator: stop whenever you like, go on from any round's `after`."""
    device = world.labels.device
    defense = _initiated(defense, world)
    now = resume or Snapshot(0, world.task.initial().to(device), defense.init(), attack.init())
    for number in range(now.next_round, rounds):
        meter, params = Meter(device), now.params
        # who takes part
        clients = world.sample(sampled, generator(seed, "sampling", number))
        acting = schedule.attacks(number) and attack != Attack()
        liars = world.malicious[clients] & acting
        # they train
        with meter("train"), seeded(derive(seed, "training", number), device):
            hooks = defense.hooks if schedule.defends(number) else ()
            updates = _trained(world, attack, hooks, now, clients, liars, local_steps, batch, seed)
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
                informed, attack_state = attack.told(defense, now.defense_state, attack_state)
                forged, attack_state = informed.forge(cohort, liars, attack_state)
                cohort = replace(cohort, updates=torch.where(liars[:, None], forged, updates))
        # the server judges, combines and moves on
        cohort = replace(cohort, seed=derive(seed, "defense", number))
        with meter("defend"):
            verdict, defense_state = _judged(defense, cohort, now.defense_state, schedule.defends(number))
            params = params + verdict.update
        now = Snapshot(number + 1, params, defense_state, attack_state)
        yield Round(number, clients, liars, schedule.defends(number), verdict, now, meter.seconds, meter.peak_memory)


def _trained(
    world: World,
    attack: Attack,
    hooks: tuple[ClientHook, ...],
    now: Snapshot,
    clients: Int[Tensor, " n"],
    liars: Bool[Tensor, " n"],
    steps: int,
    size: int,
    seed: int,
) -> Float[Tensor, "n d"]:
    """Honest clients train as the defense asks them to; liars as they please, on spoiled data."""
    images, labels = world.batches(clients, steps, size, generator(seed, "batches", now.next_round))
    honest = replace(world.trainer, hooks=(*world.trainer.hooks, *hooks))
    if not bool(liars.any()):
        return train_clients(world.task, honest, now.params, images, labels)
    rows = liars.to(labels.device)
    if not attack.trains and not bool(liars.all()):
        updates = now.params.new_zeros(len(clients), len(now.params))
        updates[~rows] = train_clients(world.task, honest, now.params, images[~rows], labels[~rows])
        return updates
    effort = attack.effort(now.params, world.task.layout, int(liars.sum()), now.attack_state)
    spoiled = images[rows], labels[rows]
    if effort.steps not in (None, steps):
        spoiled = world.batches(clients[liars], effort.steps, size, generator(seed, "effort", now.next_round))
    spoiled = attack.poison(*spoiled, world.n_classes, generator(seed, "poison", now.next_round))
    if not hooks and effort == Effort():  # all in one batch
        images[rows], labels[rows] = spoiled
        return train_clients(world.task, honest, now.params, images, labels)
    updates = now.params.new_empty(len(clients), len(now.params))
    updates[rows] = train_clients(world.task, replace(world.trainer, ascend=effort.ascend), now.params, *spoiled)
    if not bool(rows.all()):
        updates[~rows] = train_clients(world.task, honest, now.params, images[~rows], labels[~rows])
    return updates


def _judged(defense: Defense, cohort: Cohort, state: State, defending: bool) -> tuple[Verdict, State]:
    if not defending:
        plain = fedavg()
        return plain(cohort, plain.init())[0], state
    try:
        return defense(cohort, state)
    except TooFewClients as problem:
        warnings.warn(f"round skipped: {problem}", SkippedRound, stacklevel=3)
        return Verdict.skip(cohort, str(problem)), state


def _initiated(defense: Defense, world: World) -> Defense:
    liars = world.malicious.nonzero().flatten()
    told = tuple(part.told(liars) if isinstance(part, Oracle) else part for part in defense.filters)
    return replace(defense, filters=told)
