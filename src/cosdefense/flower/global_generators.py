"""Seeds the global random generators while a wrapped strategy runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..core import derive


@contextmanager
def seed_global_generators(seed: int, *purpose: str | int) -> Iterator[None]:
    """Strategies draw from Python's and numpy's global generators. Seeded here, their state need not be saved."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(derive(seed, *purpose))
    np.random.seed(derive(seed, *purpose) % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
