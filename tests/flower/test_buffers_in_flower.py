"""Poisoned BatchNorm statistics from three of eight nodes: any strategy, filters alone or a whole defense."""

from __future__ import annotations

import numpy as np
import pytest
from federations import model, reply, send_round, to_arrays, trained
from flwr.serverapp.strategy import FedAvg
from malformed import honest_body
from strategies import STRATEGIES

from cosdefense import Defense, Filter, get
from cosdefense.aggregators import Mean
from cosdefense.filters import Clip, CosDefense, FoolsGold, Krum
from cosdefense.flower import Defended
from cosdefense.flower.arrays import NDArray
from cosdefense.runs.records import RoundRecord

BUFFERS = ("norm.running_mean", "norm.running_var")
DEFENSES: dict[str, Defense | Filter] = {
    "CosDefense": CosDefense(), "FoolsGold": FoolsGold(), "Krum": Krum(), "whole Krum": get("krum"),
}  # fmt: skip


def run_round(strategy: str, defense: Defense | Filter) -> tuple[dict[str, NDArray], list[dict[str, NDArray]]]:
    """The new model, and the models of the honest nodes. The first three nodes shift what BatchNorm tracks."""
    start = model()
    defended = Defended(STRATEGIES[strategy](), defense, seed=1)
    messages = send_round(defended, start)
    models = [trained(start, message.metadata.dst_node_id) for message in messages]
    for poisoned in models[:3]:
        poisoned.update({name: poisoned[name] + np.float32(1000) for name in BUFFERS})
    replies = [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    return to_arrays(arrays), models[3:]


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if "DP" not in name and name != "Bulyan"])
def test_statistics_stay_within_the_honest_range(strategy: str, defense: str) -> None:
    """Bulyan needs more replies than these filters accept."""
    arrays, honest = run_round(strategy, DEFENSES[defense])
    for name in BUFFERS:
        values = np.array([own[name] for own in honest])
        assert (values.min(axis=0) <= arrays[name]).all()
        assert (arrays[name] <= values.max(axis=0)).all()
        assert arrays[name].dtype == np.float32


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if "DP" in name])
def test_the_noise_of_dp_covers_the_statistics(strategy: str) -> None:
    arrays, honest = run_round(strategy, FoolsGold())
    values = np.array([own["norm.running_mean"] for own in honest])
    assert np.abs(arrays["norm.running_mean"] - values.mean(axis=0)).max() < 10
    assert not np.isin(arrays["norm.running_mean"], values).any()


def test_an_operator_may_leave_them_to_the_strategy() -> None:
    arrays, _ = run_round("FedAvg", Defense((), Mean(), buffers="aggregator"))
    assert (arrays["norm.running_mean"] > 300).all()


def test_nodes_with_unusual_statistics_are_named_and_not_rejected(caplog: pytest.LogCaptureFixture) -> None:
    """Poisoned statistics are their only fault: no filter sees it, and the median makes it harmless."""
    start, defended = model(), Defended(FedAvg(), Clip(1e30), seed=1)
    for shift, expected in ((0.0, 0), (1000.0, 2)):
        messages = send_round(defended, start)
        models = [trained(start, message.metadata.dst_node_id) for message in messages]
        for poisoned in models[:2]:
            poisoned["norm.running_mean"] = poisoned["norm.running_mean"] + np.float32(shift)
        caplog.clear()
        defended.aggregate_train(1, [reply(m, honest_body(own)) for m, own in zip(messages, models, strict=True)])
        named = {message.metadata.dst_node_id for message in messages[:expected]}
        assert defended.record is not None
        assert set(defended.record.notes.get("buffers", ())) == named
        assert all(defended.record.weights)
        assert RoundRecord.from_json(defended.record.to_json()).notes == defended.record.notes
        lines = [line for line in caplog.messages if "far from the median" in line]
        assert len(lines) == len(named)
        assert all(any(str(node) in line for line in lines) for node in named)
