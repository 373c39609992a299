"""What attacks share that search against a defense: which one, and what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core import Defense, State
from .attack import Attack


@dataclass(frozen=True)
class DefenseSearch(Attack):
    """Search against `defense`, or against the server's where it is None."""

    defense: Defense | None = None

    def init(self) -> State:
        return None if self.defense is None else self.defense.init()

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        """Search against the server's defense, unless the attack was given a different one."""
        if self.defense not in (None, defense):
            return self, state
        return replace(self, defense=defense), memory
