"""Seeds of the arena: those that rules are designed and tuned on, and those that are run once, afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...catalog.options import ConfigError

DESIGN, TEST, OTHER = "design", "test", "other"
SEED_SETS = {DESIGN: range(5), TEST: range(10, 15)}


def parse_seeds(text: str) -> tuple[int, ...]:
    """`5`: the first five, 0 to 4. `10-14`: these five. `0,3,7-9`: these. A single seed is a range: `7-7`."""
    if re.fullmatch(r"\d+", text):
        if int(text) < 1:
            raise ConfigError(f"--seeds must be at least 1, got {text}")
        return tuple(range(int(text)))
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ConfigError(f"--seeds must be how many (5), a range (10-14) or a list (0,3,7), got {text!r}")
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise ConfigError(f"--seeds: a range must go up, got {part}")
        seeds |= dict.fromkeys(range(int(first), int(last or first) + 1))
    return tuple(seeds)


def find_seed_set(seed: int) -> str:
    """Design, test or other."""
    return next((name for name, seeds in SEED_SETS.items() if seed in seeds), OTHER)


def show_seeds(seeds: Iterable[int]) -> str:
    """`0–4` or `0, 3, 7–9`."""
    runs: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
