"""A federation as a gymnasium environment, simulated on the data of the malicious clients alone."""

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

Array = NDArray[np.float32]


def build_attackers_world(world: World, partition: Partition = Iid(), seed: int = 0) -> World:
    """Build a federation with as many clients as the real one, but only with the data of the malicious clients.

    `partition` is the attackers' assumption about how data are distributed. Data at the server, if the real one has
    some, are drawn from the attackers' data as well.
    """
    # The names of the random streams are part of what a seed means: they keep old results reproducible.
    if not bool(world.malicious.any()):
        raise ValueError("learning to attack needs at least one malicious client, got none")
    own = torch.cat([world.partition[client] for client in world.malicious.nonzero().flatten().tolist()])
    labels = world.targets[own.to(world.targets.device)]
    if len(own) < len(world.partition):
        raise ValueError(
            f"the attackers need at least {len(world.partition)} samples to simulate as many clients, got {len(own)}"
        )
    rows = partition(labels.cpu(), world.n_classes, len(world.partition), derive(seed, "imagined partition"))
    simulated = replace(
        world, inputs=world.inputs[own.to(world.inputs.device)], targets=labels, partition=rows, trusted_data=None
    )
    return replace(simulated, trusted_data=_build_server_data(world.trusted_data, simulated, seed))


def _build_server_data(trusted: TrustedData | None, world: World, seed: int) -> TrustedData | None:
    if not isinstance(trusted, ServerData):
        return None

    def draw(own: Int[Tensor, " own"], n: int, *purpose: str | int) -> Int[Tensor, " n"]:
        return own[torch.randperm(len(own), generator=generator(seed, *purpose))[:n]]

    n_shared = max((len(rows) for rows in trusted.shared.values()), default=0)
    held = draw(torch.arange(len(world.targets)), len(trusted.held), "imagined trusted")
    shared = {client: draw(own, n_shared, "imagined", client) for client, own in enumerate(world.partition) if n_shared}
    return replace(trusted, inputs=world.inputs, targets=world.targets, held=held, shared=shared)


class FederationEnv(gymnasium.Env[Array, Array]):
    """One step is one round in which malicious clients are sampled. Rounds without them are simulated in between.

    The observation is the last layer of the global model and the number of malicious clients in the round. The action
    is the magnitude and the number of local steps of `ReversedOwnMean`. The reward is the increase of the global
    model's loss on the attackers' data since the previous decision. Every episode is a new federation. Its first
    decision is in the round in which the attack starts, after `schedule.attack_start` honest rounds.

    Args:
        world: The real federation, see `build_attackers_world`.
        defense: The defense of the server.
        sampled: The number of clients per round.
        batch: The batch size of clients.
        local_steps: The number of local steps of honest clients.
        schedule: When attack and defense start. The attack never stops or pauses, and its strength is the policy's.
        partition: The attackers' assumption about how data are distributed.
        actions: The ranges of the actions.
        episode_length: The number of decisions per episode.
        initial: Returns the initial model of an episode, given a random number. None: all episodes start from the
            world's initial model, and the policy may work for that model only.
        seed: The seed of the simulated federation.
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
        episode_length: int = 100,
        initial: Callable[[int], Float[Tensor, " d"]] | None = None,
        seed: int = 0,
    ) -> None:
        self.world, self.defense = build_attackers_world(world, partition, seed), defense
        self.actions, self.episode_length = actions, episode_length
        self._initial = initial or (lambda seed: world.task.initial())
        self._schedule = Schedule(schedule.attack_start, defense_start=schedule.defense_start)
        self._settings: dict[str, Any] = {"sampled": sampled, "batch": batch, "local_steps": local_steps}
        # The loss of a destroyed model is unbounded or NaN. Beyond twice the loss of guessing nothing is left to gain,
        # and large jumps would dominate what the critic has to learn.
        if world.n_classes < 2:
            raise ValueError(f"learning to attack needs classes, found targets of {world.targets.dtype}")
        self.max_loss = 2 * math.log(world.n_classes)
        size = head_size(world.task.layout) + 1
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (N_ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._federation, self._decisions = int(self.np_random.integers(2**62)), 0
        start = self._initial(self._federation).to(self.world.targets.device)
        self._now = Snapshot(0, start, self.defense.init(), None)
        self._simulate(Attack(), self._schedule.attack_start)
        self._skip_rounds_without_attackers()
        self._loss = self.compute_loss()
        return self._observe(), {"loss": self._loss}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        magnitude, steps = self.actions.decode(torch.from_numpy(np.asarray(action, dtype=np.float32)))
        self._simulate(ReversedOwnMean(magnitude, steps))
        self._skip_rounds_without_attackers()
        before, self._loss = self._loss, self.compute_loss()
        self._decisions += 1
        info = {"loss": self._loss, "magnitude": magnitude, "steps": steps, "round": self._now.next_round}
        return self._observe(), self._loss - before, False, self._decisions >= self.episode_length, info

    def compute_loss(self) -> float:
        """The loss of the global model on the attackers' data, at most `max_loss`."""
        world = self.world
        loss = evaluate(world.task, self._now.params, world.inputs, world.targets, Attack(), world.n_classes).loss
        return min(loss, self.max_loss) if math.isfinite(loss) else self.max_loss

    def _simulate(self, attack: Attack, rounds: int = 1) -> None:
        for round_ in simulate(
            self.world, attack, self.defense, rounds=self._now.next_round + rounds, schedule=self._schedule,
            seed=self._federation, resume=self._now, **self._settings,
        ):  # fmt: skip
            self._now = round_.after

    def _skip_rounds_without_attackers(self) -> None:
        while self._count_attackers() == 0:
            self._simulate(Attack())

    def _count_attackers(self) -> int:
        rng = generator(self._federation, "sampling", self._now.next_round)  # the same stream as in the simulator
        return int(self.world.malicious[self.world.sample_clients(self._settings["sampled"], rng)].sum())

    def _observe(self) -> Array:
        layout = self.world.task.layout
        observation: Array = observe(
            self._now.params, layout, self._count_attackers(), self._settings["sampled"]
        ).numpy()
        return observation
