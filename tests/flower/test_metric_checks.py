"""Metrics that a strategy computes the model from: values that would stop or take over the training are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federations import content, model, reply, send_round, to_arrays, trained
from flwr.app import Message
from flwr.serverapp import strategy as flower
from strategies import NODES, STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended

ACCEPT_ALL = Clip(1e9)


def make_replies(messages: list[Message], metrics: dict[str, Any], last: dict[str, Any]) -> list[Message]:
    """Honest replies; those of the last node have other metrics."""
    start = to_arrays(messages[0].content["arrays"])
    bodies = [content(trained(start, m.metadata.dst_node_id), {**metrics, "num-examples": 10}) for m in messages]
    bodies[-1].metric_records["metrics"].__dict__["_data"].update(last)
    return [reply(m, body) for m, body in zip(messages, bodies, strict=True)]


@pytest.mark.parametrize("loss", [-1, 0, 0.0, 1e-9, 1e-3, 1e4, 1e300, [1.0]])
def test_q_fed_avg_gets_losses_that_it_can_compute_with(loss: Any) -> None:
    """−1 made its model NaN, 0 made its steps a billion times shorter, and 1e300 gave it one client's model."""
    start, models = model(), []
    for n in (8, 7):
        defended = Defended(STRATEGIES["QFedAvg"](), ACCEPT_ALL, seed=1)
        messages = send_round(defended, start)
        arrays, _ = defended.aggregate_train(1, make_replies(messages, {"loss": 1.0}, {"loss": loss})[:n])
        assert arrays is not None
        assert defended.record is not None
        models.append({name: array.data for name, array in arrays.items()})
        named = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
        assert named.get(messages[-1].metadata.dst_node_id) == ("metrics" if n == 8 else None)
        assert list(named.values()).count(None) == 7
    assert models[0] == models[1]


def test_honest_losses_count() -> None:
    defended = Defended(STRATEGIES["QFedAvg"](), ACCEPT_ALL)
    messages = send_round(defended, model())
    replies = make_replies(messages, {"loss": 0.5}, {"loss": 0.01})
    assert defended.aggregate_train(1, replies)[0] is not None
    assert defended.record is not None
    assert defended.record.reasons == (None,) * 8


def test_without_the_loss_that_q_fed_avg_reads_no_reply_counts() -> None:
    defended = Defended(flower.QFedAvg(0.1, train_loss_key="train_loss", **NODES), ACCEPT_ALL)
    messages = send_round(defended, model())
    assert defended.aggregate_train(1, make_replies(messages, {"loss": 0.5}, {}))[0] is None
    assert defended.record is not None
    assert set(defended.record.reasons) == {"metrics"}


@pytest.mark.parametrize("strategy", ["FedAvg", "FedMedian", "FedAdam"])
def test_strategies_that_only_average_losses_get_any_finite_loss(strategy: str) -> None:
    defended = Defended(STRATEGIES[strategy](), ACCEPT_ALL)
    messages = send_round(defended, model())
    assert defended.aggregate_train(1, make_replies(messages, {"loss": 1.0}, {"loss": -1e9}))[0] is not None
    assert defended.record is not None
    assert defended.record.reasons == (None,) * 8


def test_with_q_zero_the_loss_does_not_count() -> None:
    defended = Defended(flower.QFedAvg(0.1, q=0.0, train_loss_key="loss", **NODES), ACCEPT_ALL)
    messages = send_round(defended, model())
    assert defended.aggregate_train(1, make_replies(messages, {"loss": 1.0}, {"loss": -1.0}))[0] is not None
    assert defended.record is not None
    assert defended.record.reasons == (None,) * 8


@pytest.mark.parametrize("bit", [2, 0.5, -1, [1]])
def test_the_bit_of_clipping_at_the_client_is_zero_or_one(bit: Any) -> None:
    strategy = flower.DifferentialPrivacyClientSideAdaptiveClipping(flower.FedAvg(**NODES), 0.5, 7)
    defended = Defended(strategy, ACCEPT_ALL, seed=1)
    messages = send_round(defended, model())
    arrays, _ = defended.aggregate_train(1, make_replies(messages, {"norm_bit": 1}, {"norm_bit": bit}))
    assert arrays is not None
    assert np.isfinite(arrays["head.weight"].numpy()).all()
    assert defended.record is not None
    assert sorted(defended.record.reasons, key=str) == [None] * 7 + ["metrics"]
