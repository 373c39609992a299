"""What all tests share: shape checks, the same examples every time, Ctrl-C, the folder with real data."""

import gc
import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from shapes import check_calls

# Where these two are not installed, the tests that need neither still run.
if importlib.util.find_spec("beartype"):
    check_calls()
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples every time, however busy the machine is.
    settings.register_profile("cosdefense", deadline=None, derandomize=True)
    settings.load_profile("cosdefense")

# Started in the background of a script (`nohup make test &`), this process ignores Ctrl-C, and so would every process
# that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Small models gain nothing from a second thread, and on a busy machine two threads wait for each other.
torch.set_num_threads(1)

# Everything that is imported while tests are collected stays: the garbage collector need not look at it, then or later.
gc.disable()


NEEDED = {"flare": "nvflare", "flower": "flwr", "secure": "cryptography"}  # folders of tests, and what they need
collect_ignore = [folder for folder, module in NEEDED.items() if not importlib.util.find_spec(module)]


def pytest_report_header() -> list[str]:
    return [f"{NEEDED[folder]} is not installed: tests/{folder} is left out" for folder in collect_ignore]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real datasets, or a skip that says why."""
    if "COSDEFENSE_DATA" not in os.environ:
        pytest.skip("real data is absent: set COSDEFENSE_DATA to a folder with mnist/, fashion-mnist/, cifar-10/")
    return Path(os.environ["COSDEFENSE_DATA"])


@pytest.fixture
def batched_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of a round train as one computation, as on a GPU: the same within rounding, in half the time."""
    from cosdefense.training.executor import train_batched

    monkeypatch.setattr("cosdefense.simulation.client_training.train_clients", train_batched)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with long tests first: spread over processes, they would otherwise come last and alone."""
    weights, length = {"federation": 1000, "slow": 1}, Counter[Path]()
    for item in items:
        length[item.path] += sum(weight for mark, weight in weights.items() if item.get_closest_marker(mark))
    items.sort(key=lambda item: -length[item.path])
