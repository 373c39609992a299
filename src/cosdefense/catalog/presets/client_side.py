"""Presets in which clients do the work."""

from __future__ import annotations

from ...aggregators import Mean
from ...core import Defense
from ...hooks import FLWBC, AdversarialTraining


def fl_wbc(strength: float = 0.4) -> Defense:
    """Clients add noise where training would not undo a past attack; the server takes the mean.

    Args:
        strength: The scale of the Laplace noise.
    """
    return Defense((), Mean(), (FLWBC(strength),))


def fat(epsilon: float = 0.1, steps: int = 10, step_size: float | None = None) -> Defense:
    """Clients train on adversarial images; the server takes the mean.

    Args:
        epsilon: The largest change of a pixel.
        steps: How many steps of gradient ascent find the change.
        step_size: The size of one step. None: 2.5 · epsilon / steps.
    """
    return Defense((), Mean(), (AdversarialTraining(epsilon, steps, step_size),))
