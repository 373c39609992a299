"""When the attack and the defense are active."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """In which rounds the attack and the defense are active. Otherwise all clients are honest, and the mean is used."""

    attack_start: int = 0
    attack_stop: int | None = None  # the first round without the attack again
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
