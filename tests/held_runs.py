"""Runs that stop in the middle of a round until a file is removed, so that a test can interrupt them there."""

from __future__ import annotations

import time
from pathlib import Path

# While the file "hold" exists, every process stops in the sixth round of its first run, and says who it is.
HELD = """
import os, time
from dataclasses import dataclass
from pathlib import Path
import torch
from cosdefense import Defense, Filter, Judgment
from cosdefense.aggregators import Mean, Median

@dataclass(frozen=True)
class Held(Filter):
    def init(self):
        return 0

    def __call__(self, cohort, state):
        if state == 5 and Path("hold").exists():
            Path(f"held-{os.getpid()}").touch()
        while state == 5 and Path("hold").exists():
            time.sleep(0.01)
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state + 1

def mean() -> Defense:
    return Defense((Held(),), Mean())

def median() -> Defense:
    return Defense((Held(),), Median())
"""


def held(folder: Path, n: int) -> set[int]:
    """The processes that have stopped in the middle of a run, once there are so many."""
    deadline = time.monotonic() + 300
    while len(found := {int(path.name.removeprefix("held-")) for path in folder.glob("held-*")}) < n:
        assert time.monotonic() < deadline, f"{len(found)} of {n} processes have come to a run"
        time.sleep(0.02)
    return found
