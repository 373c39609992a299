"""`Defended` around Flower strategies: which replies count, and that the verdict equals the simulator's."""

from __future__ import annotations

import logging
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from federations import NODES, LocalGrid, content, honest, model, record, reply, send_round, to_arrays, trained
from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedTrimmedAvg

from cosdefense import Cohort, Defense, Filter, Layout
from cosdefense.aggregators import Mean, Median
from cosdefense.catalog.registry import FILTERS
from cosdefense.core import Need, derive
from cosdefense.filters import Clip, CosDefense, DeepSight, FoolsGold, MultiKrum
from cosdefense.flower import Defended, Reason
from cosdefense.flower.node_ids import to_signed
from cosdefense.flower.reasons import Rejection
from cosdefense.hooks import FLWBC, AdversarialTraining

MEAN = Defense((), Mean())
ACCEPT_ALL = Clip(1e9)


def fedavg(**options: Any) -> FedAvg:
    return FedAvg(min_train_nodes=8, min_evaluate_nodes=8, min_available_nodes=8, **options)


def make_replies(messages: list[Message], malicious: int = 0, scale: float = -5.0) -> list[Message]:
    """Honest replies, after some that send −5 times the mean update."""
    start = to_arrays(messages[0].content["arrays"])
    models = [trained(start, message.metadata.dst_node_id) for message in messages]
    honest_mean = {name: np.mean([m[name] for m in models[malicious:]], axis=0) for name in start}
    replies = []
    for row, (message, moved) in enumerate(zip(messages, models, strict=True)):
        if row < malicious:
            moved = {
                name: (start[name] + scale * (honest_mean[name] - start[name])).astype(start[name].dtype)
                for name in start
            }
        replies.append(reply(message, content(moved, {"loss": 1.0, "num-examples": 10})))
    return replies


def test_a_whole_defense_gives_the_same_bits_as_in_the_simulator() -> None:
    start, defense = model(), Defense((CosDefense(), Clip(0.5)), Median())
    defended = Defended(fedavg(), defense, seed=3)
    messages = send_round(defended, start)
    replies = make_replies(messages, malicious=2)
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    # the same cohort, by hand, in any order
    layout = Layout.of(start)
    params = layout.flatten(start)
    rows = torch.stack([layout.flatten(to_arrays(r.content["arrays"])) for r in replies]) - params
    verdict, _ = defense(Cohort.of(rows, params, layout, seed=derive(3, "defense", 1)), defense.init())
    expected = layout.unflatten(params + verdict.update)
    for name, array in to_arrays(arrays).items():
        wanted = expected[name].numpy() if name in expected else start[name]
        assert np.array_equal(array, wanted), name
        assert array.dtype == start[name].dtype
    assert metrics is not None
    assert metrics["cosdefense-accepted"] == int((verdict.weights != 0).sum())


def test_accepted_replies_go_to_the_wrapped_strategy() -> None:
    """FedAvg of what CosDefense accepts, every client with the same weight. Statistics: the median of all clients."""
    start = model()
    defended = Defended(fedavg(), CosDefense())
    replies = make_replies(send_round(defended, start), malicious=2)
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert defended.record is not None
    accepted = {node for node, weight in zip(defended.record.clients, defended.record.weights, strict=True) if weight}
    kept = [to_arrays(r.content["arrays"]) for r in replies if r.metadata.src_node_id in accepted]
    assert 0 < len(kept) < 8
    for name in start:
        if start[name].dtype == np.float32:
            everybody = [to_arrays(r.content["arrays"])[name] for r in replies]
            wanted = np.median(everybody, axis=0) if "running" in name else np.mean([m[name] for m in kept], axis=0)
            assert np.allclose(to_arrays(arrays)[name], wanted, atol=1e-6)
    assert to_arrays(arrays)["norm.num_batches_tracked"] == 7  # counters do not travel
    assert metrics is not None
    assert metrics["cosdefense-rejected-defense"] == 8 - len(kept)


FILTERS_WITHOUT_DATA = [
    *(kind() for kind in FILTERS.values() if not {Need.SERVER_DATA, Need.INFERENCE} & kind.needs),
    DeepSight(samples=0),
    CosDefense(layer="body.weight"),
    FoolsGold(head_only=True),
]


@pytest.mark.parametrize("part", FILTERS_WITHOUT_DATA, ids=repr)
def test_a_filter_decides_as_if_it_had_the_whole_updates(part: Filter) -> None:
    """Where the strategy aggregates, rows hold only the tensors that the filter looks at."""
    start, defended = model(), Defended(fedavg(), part, seed=3)
    defense, layout = Defense((part,), Mean()), Layout.of(start)
    params, state = layout.flatten(start), defense.init()
    for number in (1, 2):
        replies = make_replies(send_round(defended, start, server_round=number), malicious=2)
        defended.aggregate_train(number, replies)
        assert defended.record is not None
        sent = {r.metadata.src_node_id: layout.flatten(to_arrays(r.content["arrays"])) for r in replies}
        rows = torch.stack([sent[node] - params for node in defended.record.clients])
        clients = torch.tensor([to_signed(node) for node in defended.record.clients])
        whole = Cohort.of(rows, params, layout, clients, seed=derive(3, "defense", number))
        verdict, state = defense(whole, state)
        assert [w != 0 for w in defended.record.weights] == (verdict.weights != 0).tolist()
        assert defended.record.weights == pytest.approx(verdict.weights.tolist(), rel=1e-5)
        for name, scores in verdict.evidence.items():
            assert defended.record.scores[name] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian, FedTrimmedAvg, FedAdam, FedAvgM])
def test_the_order_of_arrival_does_not_matter(strategy: Any) -> None:
    start, models = model(), set()
    for shuffle in range(10):
        options = {"server_momentum": 0.9} if strategy is FedAvgM else {}
        inner = strategy(min_train_nodes=8, min_available_nodes=8, **options)
        defended = Defended(inner, MultiKrum(), seed=1)
        replies = make_replies(send_round(defended, start), malicious=2)
        random.Random(shuffle).shuffle(replies)
        arrays, _ = defended.aggregate_train(1, replies)
        assert arrays is not None
        models.add(b"".join(array.data for array in arrays.values()))
    assert len(models) == 1


def test_the_order_depends_on_the_content_alone() -> None:
    """Replies that differ only in their last values, and a node that replies twice, give one model."""
    start = {"head.weight": np.zeros((40, 50), np.float32)}
    contents = []
    for seed in range(9):
        moved = np.zeros((40, 50), np.float32)
        moved[39] = np.random.default_rng(seed).normal(size=50)
        contents.append(content({"head.weight": moved}, {"num-examples": 1}))
    models = set()
    for shuffle in range(20):
        rng = random.Random(shuffle)
        defended = Defended(fedavg(), ACCEPT_ALL, seed=1)
        messages = send_round(defended, start)
        senders = rng.sample(messages, k=8)  # which node sends which content
        twice = senders[0]
        replies = [reply(message, body) for message, body in zip([twice, *senders], contents, strict=True)]
        rng.shuffle(replies)
        arrays, metrics = defended.aggregate_train(1, replies)
        assert arrays is not None
        assert metrics is not None
        assert metrics["cosdefense-rejected-duplicate"] == 1
        models.add(arrays["head.weight"].data)
    assert len(models) == 1


def test_the_wrapped_strategy_gets_the_arrays_of_the_client() -> None:
    """The same values in any memory order, usually without a copy, and nothing else that was in the message."""
    start, got = model(), []

    class Recording(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            got.extend(replies)
            return super().aggregate_train(server_round, got)

    defended = Defended(Recording(min_train_nodes=8, min_available_nodes=8), ACCEPT_ALL)
    replies = make_replies(send_round(defended, start))
    columns = {name: np.asarray(array, order="F") for name, array in to_arrays(replies[0].content["arrays"]).items()}
    replies[0].content["arrays"] = record(columns)
    replies[1].content["more"] = ConfigRecord({"evil": "yes"})
    replies[2].metadata.__dict__.update(_group_id="evil", _message_type="query.evil", _ttl=float("nan"))
    received = {r.metadata.src_node_id: r.content.array_records["arrays"] for r in replies[1:]}
    sent = {r.metadata.src_node_id: to_arrays(r.content["arrays"]) for r in replies}
    defended.aggregate_train(1, replies)
    assert len(got) == 8
    for message in got:
        assert set(message.content) == {"arrays", "metrics"}
        assert "evil" not in str(vars(message.metadata))
        assert message.metadata.message_type == "train"
        assert message.metadata.ttl > 0
        for name, array in to_arrays(message.content["arrays"]).items():
            if start[name].dtype == np.float32 and "running" not in name:  # statistics are those of all clients
                assert array.flags.c_contiguous
                assert array.tobytes() == sent[message.metadata.src_node_id][name].tobytes()
        for name, same in received.get(message.metadata.src_node_id, {}).items():
            if start[name].dtype == np.float32 and "running" not in name:
                assert message.content["arrays"][name].data is same.data


def test_a_filter_of_one_layer_needs_no_memory_for_the_others() -> None:
    """Sixteen replies of 512 KiB: the checks and the filter take less memory than FedAvg itself."""
    start = {"body.weight": np.ones((256, 512), np.float32), "head.weight": np.ones((10, 256), np.float32)}
    peaks = {}
    for name, part in {"FedAvg": None, "CosDefense": CosDefense(), "Multi-Krum": MultiKrum()}.items():
        inner = FedAvg(min_train_nodes=16, min_available_nodes=16)
        strategy = inner if part is None else Defended(inner, part)
        messages = send_round(strategy, start, LocalGrid(honest, range(2, 18)))
        replies = make_replies(messages)
        strategy.aggregate_train(1, replies)  # what libraries keep for good is not counted
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    size = start["body.weight"].nbytes
    assert peaks["CosDefense"] < 2 * peaks["FedAvg"]
    assert peaks["CosDefense"] < 6 * size
    assert peaks["Multi-Krum"] > 16 * size  # otherwise this test could not fail


def test_examples_count_only_if_the_operator_says_so() -> None:
    start = model()
    for weigh, share in ((False, 1 / 8), (True, 10_000 / (10_000 + 7 * 10))):
        defended = Defended(fedavg(), MEAN, weigh_by_examples=weigh)
        replies = make_replies(send_round(defended, start))
        greedy = replies[3].content
        greedy["metrics"] = MetricRecord({"loss": 1.0, "num-examples": 10**9})
        arrays, _ = defended.aggregate_train(1, replies)
        assert arrays is not None
        others = np.mean(
            [to_arrays(r.content["arrays"])["head.weight"] for i, r in enumerate(replies) if i != 3], axis=0
        )
        own = to_arrays(greedy["arrays"])["head.weight"]
        wanted = share * own + (1 - share) * others
        assert np.allclose(to_arrays(arrays)["head.weight"], wanted, atol=1e-6)


def test_below_the_quorum_the_model_stays() -> None:
    defended = Defended(fedavg(), CosDefense(), quorum=7)
    replies = make_replies(send_round(defended, model()))[:6]
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is None
    assert metrics is not None
    assert metrics["cosdefense-skipped"] == 1
    assert defended.record is not None
    assert defended.record.skipped == "6 usable replies, the quorum is 7"


def test_a_failing_strategy_skips_the_round(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.touched = True
            raise RuntimeError("no")

    defended = Defended(Failing(min_train_nodes=8, min_available_nodes=8), CosDefense())
    with caplog.at_level(logging.ERROR, "flwr"):
        assert defended.aggregate_train(1, make_replies(send_round(defended, model())))[0] is None
    assert defended.record is not None
    assert "no" in str(defended.record.skipped)


def test_evaluation_replies_are_checked_too() -> None:
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


def test_whole_rounds_in_one_process() -> None:
    """Two nodes send −5 times their update; the model follows the others."""
    start = model()

    def behave(message: Message) -> Message:
        answer = honest(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id in NODES[:2]:
            old, new = to_arrays(message.content["arrays"]), to_arrays(answer.content["arrays"])
            worse = {name: (old[name] - 5 * (new[name] - old[name])).astype(old[name].dtype) for name in old}
            return reply(message, content(worse, {"loss": 1.0, "num-examples": 10}))
        return answer

    defended = Defended(fedavg(), MultiKrum(), seed=5)
    result = defended.start(LocalGrid(behave), record(start), num_rounds=3, timeout=20.0)
    assert result.train_metrics_clientapp[3]["cosdefense-received"] == 8
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    expected = start
    for number in (1, 2, 3):
        models = [trained(expected, node, number) for node in NODES[2:]]
        expected = {k: np.mean([m[k] for m in models], axis=0).astype(start[k].dtype) for k in start}
    moved = np.abs(to_arrays(result.arrays)["head.weight"] - expected["head.weight"]).max()
    assert moved < 0.02


def test_invalid_options_are_refused() -> None:
    for options, message in (
        ({"quorum": 0}, "quorum must be at least 1"),
        ({"deadline": 0.0}, "deadline must be a positive"),
        ({"max_examples": 0.0}, "max_examples must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Defended(fedavg(), CosDefense(), **options)
    with pytest.raises(ValueError, match="resume needs"):
        Defended(fedavg(), CosDefense()).start(LocalGrid(honest), record(model()), resume=True)


def test_hooks_are_refused() -> None:
    """They run while clients train, so a server would silently drop them."""
    defense = Defense((CosDefense(),), Mean(), hooks=(FLWBC(), AdversarialTraining(0.1)))
    with pytest.raises(ValueError, match=r"cannot run client hooks, got FLWBC, AdversarialTraining.*your ClientApp"):
        Defended(fedavg(), defense)


@pytest.mark.parametrize(("quorum", "skipped"), [(5, False), (7, True)])
def test_a_quorum_keeps_the_share_of_malicious_replies_below_the_contamination(quorum: int, skipped: bool) -> None:
    """Two of seven replies are 29 %. If an honest one is late, they are 33 %, and Multi-Krum at 30 % expects only one.

    With contamination × quorum at least the number of malicious nodes, such a round is skipped.
    """
    start = model()
    defended = Defended(FedAvg(min_train_nodes=7, min_available_nodes=7), MultiKrum(0.3), quorum=quorum)
    messages = send_round(defended, start, LocalGrid(honest, NODES[:7]))
    replies = make_replies(messages, malicious=2)
    malicious = {reply.metadata.src_node_id for reply in replies[:2]}
    late = Rejection(messages[6].metadata.dst_node_id, Reason.LATE, "no reply before the deadline")
    defended.aggregate_train(1, replies[:6], missing=[late])
    assert defended.record is not None
    assert (defended.record.skipped is not None) == skipped
    accepted = {node for node, weight in zip(defended.record.clients, defended.record.weights, strict=True) if weight}
    assert bool(accepted & malicious) == (not skipped)
