"""Shapes are checked, examples recur, real data may be absent."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from shapes import check_calls

# A bare machine may lack these two; the tests that need neither run there all the same.
if importlib.util.find_spec("beartype"):
    check_calls()
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples every time, and no opinion about how fast a busy machine is.
    settings.register_profile("cosdefense", deadline=None, derandomize=True)
    settings.load_profile("cosdefense")

# Small models gain nothing from a second thread, and on a busy machine two threads wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real datasets, or a skip that says why."""
    if "COSDEFENSE_DATA" not in os.environ:
        pytest.skip("real data is absent: set COSDEFENSE_DATA to a folder with mnist/, fashion-mnist/, cifar-10/")
    return Path(os.environ["COSDEFENSE_DATA"])
