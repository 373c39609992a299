"""Other people's code as a judge: Flower's strategies and byzfl's functions, where they are right.

Where they are not (float32 cancellation, n − f − 1 neighbours), the test says so and stays away.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from cosdefense import Cohort, Layout, get
from cosdefense.aggregators import Bucketing
from cosdefense.attacks import ALIE
from cosdefense.filters import ARC, NNM

CASES = list(itertools.product((5, 8, 10, 11), (1, 7, 300)))


def ours(name: str, rows: np.ndarray, **options: Any) -> np.ndarray:
    d = rows.shape[1]
    defense = get(name, **options)
    layout = Layout((("w", (d,)),), "w", d)
    cohort = Cohort.of(torch.from_numpy(rows), torch.zeros(d, dtype=torch.float64), layout)
    verdict, _ = defense(cohort, defense.init())
    update: np.ndarray = verdict.update.numpy()
    return update


def rows_for(n: int, d: int) -> np.ndarray:
    """Float64: Flower's Gram formula cancels in float32, and would judge by luck."""
    return np.random.default_rng(1000 * n + d).normal(size=(n, d))


class Flower:
    """Flower's own strategies, fed with real messages in process."""

    def __init__(self) -> None:
        pytest.importorskip("flwr", reason="flwr is not installed")
        self.strategies = importlib.import_module("flwr.serverapp.strategy")

    def aggregate(self, strategy: Any, rows: np.ndarray) -> np.ndarray:
        from flwr.app.message import make_message
        from flwr.common import Array, ArrayRecord, Metadata, MetricRecord, RecordDict

        replies = []
        for node, row in enumerate(rows, start=1):
            metadata = Metadata(
                run_id=1, message_id=str(node), src_node_id=node, dst_node_id=0, reply_to_message_id="sent",
                group_id="", created_at=0.0, ttl=60.0, message_type="train",
            )  # fmt: skip
            content = RecordDict()
            content["arrays"] = ArrayRecord({"w": Array(row)})
            content["metrics"] = MetricRecord({"num-examples": 1})
            replies.append(make_message(metadata, content=content))
        arrays, _ = strategy.aggregate_train(1, replies)
        combined: np.ndarray = arrays["w"].numpy()
        return combined


@pytest.fixture(scope="module")
def flower() -> Flower:
    return Flower()


@pytest.fixture(scope="module")
def byzfl() -> Any:
    """Its aggregators alone: the package itself imports torchvision."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("byzfl is not installed: pip install --no-deps byzfl")
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    yield importlib.import_module("byzfl.aggregators.aggregators")
    for name in [name for name in sys.modules if name.split(".")[0] == "byzfl"]:
        del sys.modules[name]


@pytest.mark.parametrize(("n", "d"), CASES)
def test_mean(flower: Flower, byzfl: Any, n: int, d: int) -> None:
    rows = rows_for(n, d)
    assert np.allclose(ours("fedavg", rows), flower.aggregate(flower.strategies.FedAvg(), rows), atol=1e-12)
    assert np.allclose(ours("fedavg", rows), byzfl.Average()(rows), atol=1e-12)


@pytest.mark.parametrize(("n", "d"), CASES)
def test_median(flower: Flower, byzfl: Any, n: int, d: int) -> None:
    rows = rows_for(n, d)
    assert np.allclose(ours("median", rows), flower.aggregate(flower.strategies.FedMedian(), rows), atol=1e-12)
    assert np.allclose(ours("median", rows), byzfl.Median()(rows), atol=1e-12)


@pytest.mark.parametrize(("n", "d"), CASES)
def test_trimmed_mean(flower: Flower, byzfl: Any, n: int, d: int) -> None:
    rows, trim = rows_for(n, d), n // 5
    found = ours("trimmed-mean", rows, contamination=0.2)
    assert np.allclose(found, flower.aggregate(flower.strategies.FedTrimmedAvg(beta=0.2), rows), atol=1e-12)
    assert np.allclose(found, byzfl.TrMean(trim)(rows), atol=1e-12)


@pytest.mark.parametrize(("n", "d"), CASES)
def test_krum_and_multi_krum(flower: Flower, n: int, d: int) -> None:
    """byzfl is no judge here: it sums n − f − 1 neighbours where the paper says n − f − 2."""
    rows, f = rows_for(n, d), n // 5
    judge = flower.strategies.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=1)
    assert np.allclose(ours("krum", rows, contamination=0.2), flower.aggregate(judge, rows), atol=1e-12)
    judge = flower.strategies.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=n - f)
    assert np.allclose(ours("multi-krum", rows, contamination=0.2), flower.aggregate(judge, rows), atol=1e-12)


@pytest.mark.parametrize(("n", "d"), CASES)
def test_before_an_aggregator(byzfl: Any, n: int, d: int) -> None:
    """byzfl writes into what it is given, and breaks ties by position; random rows have none."""
    judge = importlib.import_module("byzfl.aggregators.preaggregators")
    rows, f = rows_for(n, d), n // 5
    cohort = Cohort.of(torch.from_numpy(rows), torch.zeros(d, dtype=torch.float64), Layout((("w", (d,)),), "w", d))
    for part, other in ((NNM(0.2), judge.NNM(f)), (ARC(0.2), judge.ARC(f))):
        judgment, _ = part(cohort, None)
        assert judgment.updates is not None
        assert np.allclose(judgment.updates.numpy(), other(rows.copy()), atol=1e-12)
    # The groups are drawn by others: the mean of all of size n is the same, and so is every row of size 1.
    assert np.allclose(Bucketing(size=n)(cohort, Bucketing().init())[0], judge.Bucketing(n)(rows)[0], atol=1e-12)
    ones = Bucketing(size=1)
    assert np.allclose(ones(cohort, ones.init())[0], byzfl.Median()(judge.Bucketing(1)(rows)), atol=1e-12)


@pytest.mark.parametrize(("n", "d"), CASES)
def test_a_little_is_enough(byzfl: Any, n: int, d: int) -> None:
    """byzfl adds where we subtract, and takes the sample's deviation where the population's is meant."""
    judge = importlib.import_module("byzfl.attacks.attacks").ALittleIsEnough(1.5)
    rows = rows_for(n, d)
    cohort = Cohort.of(torch.from_numpy(rows), torch.zeros(d, dtype=torch.float64), Layout((("w", (d,)),), "w", d))
    z = -1.5 * (n - 1) ** 0.5 / (n - 2) ** 0.5
    forged, _ = ALIE(z=z).forge(cohort, torch.arange(n) == 0, None)
    assert np.allclose(forged[0].numpy(), judge(rows[1:]), atol=1e-12)
