"""Rounds to come, as the planning attack imagines them: the defense is applied to a schedule of forgeries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..core import Cohort, Defense, State
from ._forgeries import Forgery, ForgeryBuilder
from ._knowledge import known_rows
from ._trial_round import HonestProgress

Schedule = tuple[Forgery, ...]  # one forgery per round


@dataclass(frozen=True, eq=False)
class Node:
    """The federation after some of the imagined rounds."""

    memory: State
    displacement: Float[Tensor, " d"]  # of the model, since the first of these rounds


@dataclass(frozen=True, eq=False)
class ScheduleTrial:
    """One schedule and its effect."""

    schedule: Schedule
    damage: float

    @property
    def candidate(self) -> Forgery:
        """What is sent in the first round."""
        return self.schedule[0]


class ImaginedRounds:
    """Runs schedules of forgeries on a copy of the defense's memory. Rounds that schedules share are run once.

    In every round the same clients take part. If the model was moved by v, each of them sends its update of the first
    round minus curvature · v: the gradient of a quadratic loss. So honest clients pull the model back.
    """

    def __init__(
        self, cohort: Cohort, malicious: Bool[Tensor, " n"], defense: Defense, memory: State, curvature: float
    ) -> None:
        self._cohort, self._malicious, self._defense, self._curvature = cohort, malicious, defense, curvature
        self._known = known_rows(malicious, "full")
        self._progress = HonestProgress(cohort.updates[self._known].mean(dim=0)[: cohort.layout.n_trainable])
        self._places = malicious.nonzero().flatten()
        self._nodes: dict[Schedule, Node] = {(): Node(memory, torch.zeros_like(cohort.params))}
        self._builder: tuple[Schedule, ForgeryBuilder] | None = None  # of the last round
        self.n_rounds = 0  # that were run

    def run(self, schedule: Schedule) -> ScheduleTrial:
        """The damage is how much the model falls short of one honest mean per round, along that mean."""
        t = self._cohort.layout.n_trainable
        displacement = self._reach(schedule).displacement
        return ScheduleTrial(schedule, self._progress.compute_damage(displacement[:t], len(schedule)))

    def build_rows(self, forgery: Forgery) -> Float[Tensor, "m d"]:
        """What the malicious clients send in the first round."""
        return self._get_builder((), self._cohort).build(forgery)

    def get_memory(self, forgery: Forgery) -> State:
        """What the defense remembers after a first round with this forgery."""
        return self._reach((forgery,)).memory

    def _reach(self, schedule: Schedule) -> Node:
        if schedule not in self._nodes:
            before = self._reach(schedule[:-1])
            cohort = self._cohort
            if schedule[:-1]:
                updates = cohort.updates - self._curvature * before.displacement
                cohort = replace(cohort, updates=updates, params=cohort.params + before.displacement)
            updates = cohort.updates.clone()
            updates[self._places] = self._get_builder(schedule[:-1], cohort).build(schedule[-1])
            _, verdict, memory = self._defense.run_round(replace(cohort, updates=updates), before.memory)
            self.n_rounds += 1
            self._nodes[schedule] = Node(memory, before.displacement + verdict.update)
        return self._nodes[schedule]

    def _get_builder(self, before: Schedule, cohort: Cohort) -> ForgeryBuilder:
        if self._builder is None or self._builder[0] != before:
            self._builder = before, ForgeryBuilder.from_cohort(cohort, cohort.updates[self._known], self._malicious)
        return self._builder[1]
