"""What all tests of federations need."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def few_objects_to_collect() -> Iterator[None]:
    """Bulyan and QFedAvg collect garbage after every array, which takes long beside all that pytest has loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
