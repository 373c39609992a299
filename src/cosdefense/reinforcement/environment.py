"""A federation as a gymnasium environment, for attackers who have nothing but their own data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from ..attacks import Attack
from ..attacks.learned_policy import ReversedOwnMean
from ..attacks.policy_network import N_ACTIONS, ActionRanges, head_size, observe
from ..core import Defense, TrustedData, derive, generator
from ..data.partition import Iid, Partition
from ..simulation.evaluation import evaluate
from ..simulation.loop import Snapshot, simulate
from ..simulation.schedule import Schedule
from ..simulation.world import World
from ..training.server_data import ServerData

Numbers = NDArray[np.float32]
Answer = tuple[Numbers, dict[str, Any]]


def attackers_world(world: World, partition: Partition = Iid(), seed: int = 0) -> World:
    """The federation as the attackers imagine it: as many clients, but only the data of the malicious ones.

    How the data is spread they guess with `partition`. A server's own data is imagined from theirs as well.
    """
    if not bool(world.malicious.any()):
        raise ValueError("learning to attack needs at least one malicious client, got none")
    own = torch.cat([world.partition[client] for client in world.malicious.nonzero().flatten().tolist()])
    labels = world.labels[own.to(world.labels.device)]
    if len(own) < len(world.partition):
        raise ValueError(
            f"the attackers need at least {len(world.partition)} samples to imagine as many clients, got {len(own)}"
        )
    owned = partition(labels.cpu(), world.n_classes, len(world.partition), derive(seed, "imagined partition"))
    imagined = replace(
        world, images=world.images[own.to(world.images.device)], labels=labels, partition=owned, trusted_data=None
    )
    return replace(imagined, trusted_data=_imagined(world.trusted_data, imagined, seed))


def _imagined(trusted: TrustedData | None, world: World, seed: int) -> TrustedData | None:
    if not isinstance(trusted, ServerData):
        return None

    def some(own: Int[Tensor, " own"], n: int, *purpose: str | int) -> Int[Tensor, " n"]:
        return own[torch.randperm(len(own), generator=generator(seed, *purpose))[:n]]

    n_shared = max((len(rows) for rows in trusted.shared.values()), default=0)
    held = some(torch.arange(len(world.labels)), len(trusted.held), "imagined trusted")
    shared = {client: some(own, n_shared, "imagined", client) for client, own in enumerate(world.partition) if n_shared}
    return replace(trusted, images=world.images, labels=world.labels, held=held, shared=shared)


class FederationEnv(gymnasium.Env[Numbers, Numbers]):
    """One step is one round in which attackers are sampled; rounds without them pass by.

    Observed is the last layer of the global model and how many attackers the round has, acted is how hard and after
    how many steps to push, and rewarded is the rise of the global model's loss on the attackers' own data from one
    decision to the next. Every episode is a federation of its own, and its first decision comes when the attack starts:
    after `schedule.attack_start` honest rounds. `initial` gives it a model to start from, for a random number; without
    it all start from the world's, and what is learned may be of use for that model alone.
    """

    def __init__(
        self,
        world: World,
        defense: Defense,
        *,
        sampled: int,
        batch: int,
        local_steps: int = 1,
        schedule: Schedule = Schedule(),
        partition: Partition = Iid(),
        actions: ActionRanges = ActionRanges(),
        episode: int = 100,
        initial: Callable[[int], Float[Tensor, " d"]] | None = None,
        seed: int = 0,
    ) -> None:
        self.world, self.defense = attackers_world(world, partition, seed), defense
        self.actions, self.episode = actions, episode
        self._initial = initial or (lambda seed: world.task.initial())
        self._schedule = replace(schedule, attack_stop=None)
        self._rules: dict[str, Any] = {"sampled": sampled, "batch": batch, "local_steps": local_steps}
        # A ruined model's loss has no bound, and may not even be a number: beyond twice that of guessing there is
        # nothing left to win, and the jumps up there would drown what a critic has to learn.
        self.ceiling = 2 * math.log(world.n_classes)
        size = head_size(world.task.layout) + 1
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (N_ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Answer:
        super().reset(seed=seed)
        self._federation, self._decisions = int(self.np_random.integers(2**62)), 0
        start = self._initial(self._federation).to(self.world.labels.device)
        self._now = Snapshot(0, start, self.defense.init(), None)
        self._play(Attack(), self._schedule.attack_start)
        self._wait()
        self._loss = self.loss()
        return self._observed(), {"loss": self._loss}

    def step(self, action: Numbers) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        magnitude, steps = self.actions.decode(torch.from_numpy(np.asarray(action, dtype=np.float32)))
        self._play(ReversedOwnMean(magnitude, steps))
        self._wait()
        before, self._loss = self._loss, self.loss()
        self._decisions += 1
        told = {"loss": self._loss, "magnitude": magnitude, "steps": steps, "round": self._now.next_round}
        return self._observed(), self._loss - before, False, self._decisions >= self.episode, told

    def loss(self) -> float:
        """Of the global model on the attackers' own data, up to the ceiling."""
        world = self.world
        found = evaluate(world.task, self._now.params, world.images, world.labels, Attack(), world.n_classes).loss
        return min(found, self.ceiling) if math.isfinite(found) else self.ceiling

    def _play(self, attack: Attack, rounds: int = 1) -> None:
        for round_ in simulate(
            self.world, attack, self.defense, rounds=self._now.next_round + rounds, schedule=self._schedule,
            seed=self._federation, resume=self._now, **self._rules,
        ):  # fmt: skip
            self._now = round_.after

    def _wait(self) -> None:
        """Rounds in which no attacker takes part go by without a decision."""
        while self._n_attackers() == 0:
            self._play(Attack())

    def _n_attackers(self) -> int:
        rng = generator(self._federation, "sampling", self._now.next_round)  # as the simulator will draw them
        return int(self.world.malicious[self.world.sample_clients(self._rules["sampled"], rng)].sum())

    def _observed(self) -> Numbers:
        layout = self.world.task.layout
        numbers: Numbers = observe(self._now.params, layout, self._n_attackers(), self._rules["sampled"]).numpy()
        return numbers
