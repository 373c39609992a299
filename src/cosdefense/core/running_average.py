"""Exponential running averages, for rules that remember one number."""

from __future__ import annotations

from typing import Any


def running_average(past: float | None, now: float, decay: float) -> float:
    """An exponential average that goes on; it begins with the first number."""
    return now if past is None else decay * past + (1 - decay) * now


def check_decay(part: Any) -> None:
    """For parts with such an average."""
    if not 0 <= part.decay < 1:
        raise ValueError(f"{type(part).__name__}.decay must be in [0, 1), got {part.decay}")
