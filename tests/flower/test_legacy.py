"""Strategies and clients of Flower's older API behind `Defended`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import NODES, LocalGrid, honest, model, record, reply, to_arrays, trained
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.common import Code, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as older

from cosdefense.filters import MultiKrum
from cosdefense.flower import Defended, LegacyStrategy, build_client_app

OLDER: dict[str, Any] = {"min_fit_clients": 8, "fraction_evaluate": 0.0, "min_available_clients": 8}
COUNTER = "norm.num_batches_tracked"


def start() -> Parameters:
    return ndarrays_to_parameters(list(model().values()))


STRATEGIES: dict[str, Callable[[], older.Strategy]] = {
    "FedAvg": lambda: older.FedAvg(**OLDER),
    "FedMedian": lambda: older.FedMedian(**OLDER),
    "FedAdam": lambda: older.FedAdam(**OLDER, initial_parameters=start()),
    "FedAvgM": lambda: older.FedAvgM(
        **OLDER, initial_parameters=start(), server_momentum=0.9, server_learning_rate=0.5
    ),
}


class DigitClient(NumPyClient):
    """As users of the older API write them."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        step = np.float32(0.01 * config["server-round"])
        return [array + step.astype(array.dtype) for array in parameters], 12, {"loss": 0.5}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return float(abs(parameters[0]).mean()), 12, {"accuracy": 0.75}


def answer(message: Message) -> Message:
    """A node with a `NumPyClient`."""
    app = build_client_app(lambda context: DigitClient())
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    return reply(message, app(message, context).content)


def run(name: str, rounds: int = 3, folder: Path | None = None) -> dict[str, Any]:
    defended = Defended(LegacyStrategy(STRATEGIES[name]()), MultiKrum(0.0), checkpoint_dir=folder, seed=3)
    result = defended.start(LocalGrid(honest), record(model()), num_rounds=rounds, resume=folder is not None)
    return to_arrays(result.arrays)


def compute(name: str, rounds: int = 3) -> dict[str, Any]:
    """What the strategy makes of the same replies when it is called directly."""
    strategy, arrays = STRATEGIES[name](), model()
    for number in range(1, rounds + 1):
        results: list[Any] = []
        for node in NODES:
            values = trained(arrays, node, number).values()
            results.append((None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(list(values)), 1, {})))
        parameters, _ = strategy.aggregate_fit(number, results, [])
        assert parameters is not None
        arrays = dict(zip(arrays, parameters_to_ndarrays(parameters), strict=True))
        arrays[COUNTER] = model()[COUNTER]  # an integer, which older strategies would turn into a fraction
    return arrays


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_older_strategy_aggregates_as_it_does_alone(name: str) -> None:
    found, expected = run(name), compute(name)
    for key, array in found.items():
        if key.startswith("norm."):  # buffers, which no strategy combines
            continue
        np.testing.assert_allclose(array, expected[key], rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM"])
def test_its_state_is_in_the_checkpoint(name: str, tmp_path: Path) -> None:
    run(name, rounds=1, folder=tmp_path)
    resumed, at_once = run(name, folder=tmp_path), run(name)
    assert all(np.array_equal(resumed[key], at_once[key]) for key in at_once)


def test_a_malicious_node_is_rejected() -> None:
    """Before an older strategy sees its reply."""

    def behave(message: Message) -> Message:
        answered = honest(message)
        if message.metadata.dst_node_id == NODES[0]:
            arrays = {name: -10 * array for name, array in to_arrays(answered.content["arrays"]).items()}
            answered.content["arrays"] = record(arrays)
        return answered

    defended = Defended(LegacyStrategy(STRATEGIES["FedAvg"]()), MultiKrum(0.13), seed=3)
    defended.start(LocalGrid(behave), record(model()), num_rounds=1)
    assert defended.record is not None
    rejected = {node for node, reason in zip(defended.record.clients, defended.record.reasons, strict=True) if reason}
    assert rejected == {NODES[0]}


def test_a_numpy_client_trains_and_evaluates() -> None:
    def average(metrics: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
        return {"accuracy": float(np.mean([found["accuracy"] for _, found in metrics]))}

    strategy = older.FedAvg(min_available_clients=8, evaluate_metrics_aggregation_fn=average)
    defended = Defended(LegacyStrategy(strategy), MultiKrum(0.3), seed=3)
    result = defended.start(LocalGrid(answer), record(model()), num_rounds=2)
    moved = to_arrays(result.arrays)["head.weight"] - model()["head.weight"]
    np.testing.assert_allclose(moved, 0.03, atol=1e-6)  # 0.01 in the first round and 0.02 in the second
    assert result.evaluate_metrics_clientapp[2]["accuracy"] == 0.75
    assert result.evaluate_metrics_clientapp[2]["loss"] == pytest.approx(
        float(np.abs(model()["body.weight"] + 0.03).mean()), abs=1e-5
    )


def test_it_waits_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosdefense.flower.legacy.POLL_INTERVAL", 0.0)
    grid = LocalGrid(honest, nodes=())
    queries = iter([(1, 2), (1, 2, 3, 4), range(1, 9)])

    def connect() -> Any:
        grid.nodes = tuple(next(queries))
        return grid.nodes

    grid.get_node_ids = connect  # type: ignore[method-assign]
    strategy = LegacyStrategy(older.FedAvg(**OLDER))
    messages = list(strategy.configure_train(1, record(model()), ConfigRecord(), grid))
    assert sorted(message.metadata.dst_node_id for message in messages) == list(range(1, 9))
