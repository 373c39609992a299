"""Defended around Flower's strategies: who counts, and that the verdict is the simulator's."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
from federations import NODES, LocalGrid, arrays_of, asked, content, honest, model, record, reply, trained
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean, Median
from cosdefense.core import derive
from cosdefense.filters import Clip, CosDefense, MultiKrum
from cosdefense.flower import Defended

PLAIN = Defense((), Mean())
EVERYBODY = Clip(1e9)


def fedavg(**options: Any) -> FedAvg:
    return FedAvg(min_train_nodes=8, min_evaluate_nodes=8, min_available_nodes=8, **options)


def answers(messages: list[Message], liars: int = 0, scale: float = -5.0) -> list[Message]:
    """Honest replies, and some that send the opposite of the mean."""
    start = arrays_of(messages[0].content["arrays"])
    models = [trained(start, message.metadata.dst_node_id) for message in messages]
    honest_mean = {name: np.mean([m[name] for m in models[liars:]], axis=0) for name in start}
    found = []
    for row, (message, moved) in enumerate(zip(messages, models, strict=True)):
        if row < liars:
            moved = {
                name: (start[name] + scale * (honest_mean[name] - start[name])).astype(start[name].dtype)
                for name in start
            }
        found.append(reply(message, content(moved, {"loss": 1.0, "num-examples": 10})))
    return found


def test_a_whole_defense_gives_the_same_bits_as_in_the_simulator() -> None:
    start, defense = model(), Defense((CosDefense(), Clip(0.5)), Median())
    defended = Defended(fedavg(), defense, seed=3)
    messages = asked(defended, start)
    replies = answers(messages, liars=2)
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    # the same cohort, by hand, in any order
    layout = Layout.of(start)
    params = layout.flatten(start)
    rows = torch.stack([layout.flatten(arrays_of(r.content["arrays"])) for r in replies]) - params
    verdict, _ = defense(Cohort.of(rows, params, layout, seed=derive(3, "defense", 1)), defense.init())
    expected = layout.unflatten(params + verdict.update)
    for name, array in arrays_of(arrays).items():
        wanted = expected[name].numpy() if name in expected else start[name]
        assert np.array_equal(array, wanted), name
        assert array.dtype == start[name].dtype
    assert metrics is not None
    assert metrics["cosdefense-accepted"] == int((verdict.weights != 0).sum())


def test_accepted_replies_go_to_the_wrapped_strategy() -> None:
    """FedAvg of what CosDefense accepts, every client with the same weight."""
    start = model()
    defended = Defended(fedavg(), CosDefense())
    replies = answers(asked(defended, start), liars=2)
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert defended.record is not None
    accepted = {node for node, weight in zip(defended.record.clients, defended.record.weights, strict=True) if weight}
    kept = [arrays_of(r.content["arrays"]) for r in replies if r.metadata.src_node_id in accepted]
    assert 0 < len(kept) < 8
    for name in start:
        if start[name].dtype == np.float32:
            wanted = np.mean([m[name] for m in kept], axis=0)
            assert np.allclose(arrays_of(arrays)[name], wanted, atol=1e-6)
    assert arrays_of(arrays)["norm.num_batches_tracked"] == 7  # counters do not travel
    assert metrics is not None
    assert metrics["cosdefense-rejected-defense"] == 8 - len(kept)


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian, FedTrimmedAvg, FedAdam, FedAvgM])
def test_the_order_of_arrival_does_not_matter(strategy: Any) -> None:
    start, found = model(), set()
    for shuffle in range(10):
        options = {"server_momentum": 0.9} if strategy is FedAvgM else {}
        inner = strategy(min_train_nodes=8, min_available_nodes=8, **options)
        defended = Defended(inner, MultiKrum(), seed=1)
        replies = answers(asked(defended, start), liars=2)
        random.Random(shuffle).shuffle(replies)
        arrays, _ = defended.aggregate_train(1, replies)
        assert arrays is not None
        found.add(b"".join(array.data for array in arrays.values()))
    assert len(found) == 1


def test_neither_arrival_nor_who_sent_what_decides_the_order() -> None:
    """Replies that differ only far behind their beginnings, one node answering twice: still one model."""
    start = {"head.weight": np.zeros((40, 50), np.float32)}
    contents = []
    for seed in range(9):
        moved = np.zeros((40, 50), np.float32)
        moved[39] = np.random.default_rng(seed).normal(size=50)
        contents.append(content({"head.weight": moved}, {"num-examples": 1}))
    found = set()
    for shuffle in range(20):
        rng = random.Random(shuffle)
        defended = Defended(fedavg(), EVERYBODY, seed=1)
        messages = asked(defended, start)
        senders = rng.sample(messages, k=8)  # who sends what
        twice = senders[0]
        replies = [reply(message, body) for message, body in zip([twice, *senders], contents, strict=True)]
        rng.shuffle(replies)
        arrays, metrics = defended.aggregate_train(1, replies)
        assert arrays is not None
        assert metrics is not None
        assert metrics["cosdefense-rejected-duplicate"] == 1
        found.add(arrays["head.weight"].data)
    assert len(found) == 1


def test_the_wrapped_strategy_gets_what_the_client_sent() -> None:
    """The same values, whichever way they lie in memory, and nothing else that was in the message."""
    start, got = model(), []

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            got.extend(replies)
            return super().aggregate_train(server_round, got)

    defended = Defended(Watching(min_train_nodes=8, min_available_nodes=8), EVERYBODY)
    replies = answers(asked(defended, start))
    columns = {name: np.asarray(array, order="F") for name, array in arrays_of(replies[0].content["arrays"]).items()}
    replies[0].content["arrays"] = record(columns)
    replies[1].content["more"] = ConfigRecord({"evil": "yes"})
    sent = {r.metadata.src_node_id: arrays_of(r.content["arrays"]) for r in replies}
    defended.aggregate_train(1, replies)
    assert len(got) == 8
    for message in got:
        assert set(message.content) == {"arrays", "metrics"}
        for name, array in arrays_of(message.content["arrays"]).items():
            if start[name].dtype == np.float32:
                assert array.flags.c_contiguous
                assert array.tobytes() == sent[message.metadata.src_node_id][name].tobytes()


def test_examples_count_only_if_the_operator_says_so() -> None:
    start = model()
    for weigh, share in ((False, 1 / 8), (True, 10_000 / (10_000 + 7 * 10))):
        defended = Defended(fedavg(), PLAIN, weigh_by_examples=weigh)
        replies = answers(asked(defended, start))
        greedy = replies[3].content
        greedy["metrics"] = MetricRecord({"loss": 1.0, "num-examples": 10**9})
        arrays, _ = defended.aggregate_train(1, replies)
        assert arrays is not None
        others = np.mean(
            [arrays_of(r.content["arrays"])["head.weight"] for i, r in enumerate(replies) if i != 3], axis=0
        )
        own = arrays_of(greedy["arrays"])["head.weight"]
        wanted = share * own + (1 - share) * others
        assert np.allclose(arrays_of(arrays)["head.weight"], wanted, atol=1e-6)


def test_below_the_quorum_the_model_stays() -> None:
    defended = Defended(fedavg(), CosDefense(), quorum=7)
    replies = answers(asked(defended, model()))[:6]
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is None
    assert metrics is not None
    assert metrics["cosdefense-skipped"] == 1
    assert defended.record is not None
    assert defended.record.skipped == "6 usable replies, the quorum is 7"


def test_a_strategy_that_fails_costs_the_round_not_the_run(caplog: pytest.LogCaptureFixture) -> None:
    class Fragile(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.touched = True
            raise RuntimeError("no")

    defended = Defended(Fragile(min_train_nodes=8, min_available_nodes=8), CosDefense())
    with caplog.at_level(logging.ERROR, "flwr"):
        assert defended.aggregate_train(1, answers(asked(defended, model())))[0] is None
    assert defended.record is not None
    assert "no" in str(defended.record.skipped)


def test_evaluation_is_guarded_too() -> None:
    defended = Defended(fedavg(), CosDefense())
    grid = LocalGrid(honest)
    messages = list(defended.configure_evaluate(1, record(model()), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    replies = [reply(m, content(None, {"accuracy": 0.5, "num-examples": 10})) for m in messages]
    replies[0] = reply(messages[0], content(None, {"accuracy": float("nan"), "num-examples": 10}))
    replies[1] = reply(messages[1], content(None, {"accuracy": 0.9, "num-examples": 1e9}))
    metrics = defended.aggregate_evaluate(1, replies)
    assert metrics is not None
    assert metrics["accuracy"] == pytest.approx((6 * 0.5 + 0.9) / 7)


def test_rounds_end_to_end_in_process() -> None:
    """Two nodes send the opposite; the others' direction wins."""
    start = model()

    def behave(message: Message) -> Message:
        sent = honest(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id in NODES[:2]:
            old, new = arrays_of(message.content["arrays"]), arrays_of(sent.content["arrays"])
            worse = {name: (old[name] - 5 * (new[name] - old[name])).astype(old[name].dtype) for name in old}
            return reply(message, content(worse, {"loss": 1.0, "num-examples": 10}))
        return sent

    defended = Defended(fedavg(), MultiKrum(), seed=5)
    result = defended.start(LocalGrid(behave), record(start), num_rounds=3, timeout=20.0)
    assert result.train_metrics_clientapp[3]["cosdefense-received"] == 8
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    expected = start
    for number in (1, 2, 3):
        models = [trained(expected, node, number) for node in NODES[2:]]
        expected = {k: np.mean([m[k] for m in models], axis=0).astype(start[k].dtype) for k in start}
    moved = np.abs(arrays_of(result.arrays)["head.weight"] - expected["head.weight"]).max()
    assert moved < 0.02


def test_mistakes_are_named() -> None:
    for mistake, words in (
        ({"quorum": 0}, "quorum must be at least 1"),
        ({"deadline": 0.0}, "deadline must be a positive"),
        ({"max_examples": 0.0}, "max_examples must be positive"),
    ):
        with pytest.raises(ValueError, match=words):
            Defended(fedavg(), CosDefense(), **mistake)
    with pytest.raises(ValueError, match="resume needs"):
        Defended(fedavg(), CosDefense()).start(LocalGrid(honest), record(model()), resume=True)
