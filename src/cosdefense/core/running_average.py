"""Exponential running averages, for rules that remember one number."""

from __future__ import annotations

from typing import Any


def running_average(past: float | None, now: float, decay: float) -> float:
    """The exponential average after one more number; the first number starts it."""
    return now if past is None else decay * past + (1 - decay) * now


def check_decay(part: Any) -> None:
    """Check the option `decay` of a part."""
    if not 0 <= part.decay < 1:
        raise ValueError(f"{type(part).__name__}.decay must be in [0, 1), got {part.decay}")
