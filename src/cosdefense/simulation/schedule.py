"""When the attack and the defense are active, and how strong the attack is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """In which rounds the attack and the defense are active. Otherwise all clients are honest, and the mean is used.

    A schedule applies to any attack: it may start late, stop, pause, and grow. Rounds count from 0.

    Args:
        attack_start: The first round with the attack.
        attack_stop: The first round without the attack again. None: it does not stop.
        defense_start: The first round with the defense.
        attack_period: The attack is active in the first `attack_rounds` rounds of every `attack_period`, counted from
            `attack_start`. None: it is active in all of them.
        attack_rounds: How many rounds of a period the attack is active.
        attack_scale: The factor of what malicious clients send in the round `attack_start`.
        attack_growth: The factor by which `attack_scale` changes from round to round.
        attack_scale_end: Where the factor stops changing.
    """

    attack_start: int = 0
    attack_stop: int | None = None
    defense_start: int = 0
    attack_period: int | None = None
    attack_rounds: int = 1
    attack_scale: float = 1.0
    attack_growth: float = 1.0
    attack_scale_end: float = 1.0

    def __post_init__(self) -> None:
        if self.attack_start < 0 or self.defense_start < 0:
            raise ValueError(f"rounds count from 0, got {min(self.attack_start, self.defense_start)}")
        if self.attack_stop is not None and self.attack_stop < self.attack_start:
            raise ValueError(f"attack_stop must not come before attack_start, got {self.attack_stop}")
        if self.attack_period is not None and not 1 <= self.attack_rounds <= self.attack_period:
            raise ValueError(f"attack_rounds must be from 1 to {self.attack_period}, got {self.attack_rounds}")
        if self.attack_period is None and self.attack_rounds != 1:
            raise ValueError(f"attack_rounds needs attack_period, got {self.attack_rounds} alone")
        for name in ("attack_scale", "attack_growth", "attack_scale_end"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if (self.attack_scale_end - self.attack_scale) * (self.attack_growth - 1) < 0 or (
            self.attack_growth == 1 and self.attack_scale != self.attack_scale_end
        ):
            raise ValueError(
                f"attack_growth must lead from attack_scale = {self.attack_scale} to "
                f"attack_scale_end = {self.attack_scale_end}, got {self.attack_growth}"
            )

    def attacks(self, number: int) -> bool:
        """Whether the attack is active in this round."""
        if number < self.attack_start or (self.attack_stop is not None and number >= self.attack_stop):
            return False
        return self.attack_period is None or (number - self.attack_start) % self.attack_period < self.attack_rounds

    def scale(self, number: int) -> float:
        """The factor of what malicious clients send in this round."""
        if self.attack_growth == 1:
            return self.attack_scale
        n_steps = math.log(self.attack_scale_end / self.attack_scale, self.attack_growth)
        n_rounds = max(0, number - self.attack_start)
        # Compared in steps, not in powers: these overflow.
        return self.attack_scale_end if n_rounds >= n_steps else self.attack_scale * self.attack_growth**n_rounds

    def defends(self, number: int) -> bool:
        """Whether the defense is active in this round."""
        return self.defense_start <= number
