"""A malformed reply does not affect the others: every kind, first or last, with every strategy that averages."""

from __future__ import annotations

import io
import logging
import os
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import LocalGrid, content, honest, model, record, reply, send_round, to_arrays, trained
from flwr.app import ConfigRecord, Message, MetricRecord
from malformed import CANARY, CONTENTS, KINDS, TARGET, get_reason, honest_body, make_malformed, npy, raw
from strategies import EVERY_STRATEGY, STRATEGIES

from cosdefense import Defense, Filter
from cosdefense.aggregators import Median
from cosdefense.core import pack
from cosdefense.filters import Clip, CosDefense, FoolsGold, MultiKrum
from cosdefense.flower import Defended, Reason
from cosdefense.flower.reasons import Rejection
from cosdefense.flower.strategy_state import pack_strategy

ACCEPT_ALL = Clip(1e9)  # rejects no client and changes no update


def honest_replies(messages: list[Message], server_round: int = 1) -> list[Message]:
    start = to_arrays(messages[0].content["arrays"])
    return [reply(m, honest_body(trained(start, m.metadata.dst_node_id, server_round))) for m in messages]


def aggregate(defended: Defended, replies: list[Message]) -> dict[str, Any]:
    """All that the next round depends on, and the metrics of this one."""
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert all(np.isfinite(array).all() for array in to_arrays(arrays).values())
    packed, (state, tensors) = pack_strategy(defended.strategy), pack(defended.state)
    return {
        "model": {name: (array.dtype, array.shape, array.data) for name, array in arrays.items()},
        "metrics": {key: value for key, value in metrics.items() if not key.startswith("cosdefense")},
        "strategy": (packed.attributes, {k: t.numpy().tobytes() for k, t in packed.tensors.items()}),
        "state": (state, {k: t.numpy().tobytes() for k, t in tensors.items()}),
    }


def compare_with_honest_replies_alone(make: Callable[[], Defended], place: int, kinds: Sequence[str] = KINDS) -> None:
    start, first = model(), make()
    messages = send_round(first, start)
    replies = honest_replies(messages)  # the same for every kind: sampling is seeded, and replies are not modified
    message = messages[place]
    del replies[place]
    expected = aggregate(first, replies)
    for kind in kinds:
        defended = make()
        send_round(defended, start)
        bad = make_malformed(kind, message, trained(start, 5))
        assert aggregate(defended, [bad, *replies] if place == 0 else [*replies, bad]) == expected, kind
        assert defended.record is not None
        assert set(defended.record.reasons) - {None, "defense"} == {get_reason(kind)}, kind


def test_the_catalog_is_complete() -> None:
    assert len(KINDS) == 88
    assert len(STRATEGIES) == 14


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_the_result_is_that_of_the_honest_replies_alone(strategy: str, place: int) -> None:
    """All kinds for FedAvg; every fourth one for the others, unless COSDEFENSE_THOROUGH is set."""
    turn = list(STRATEGIES).index(strategy)
    kinds = KINDS if turn == 0 or os.environ.get("COSDEFENSE_THOROUGH") else KINDS[turn % 4 :: 4]
    compare_with_honest_replies_alone(lambda: Defended(STRATEGIES[strategy](), ACCEPT_ALL, seed=11), place, kinds)


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("defense", [CosDefense(), FoolsGold(), Defense((MultiKrum(),), Median())], ids=repr)
def test_the_defense_does_not_see_malformed_replies(defense: Defense | Filter, place: int) -> None:
    compare_with_honest_replies_alone(lambda: Defended(STRATEGIES["FedAvgM"](), defense, seed=11), place, KINDS[::6])


def test_all_but_two_may_be_malformed() -> None:
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL)
    messages = send_round(defended, model())
    replies = honest_replies(messages)
    for place, kind in enumerate(random.Random(1).sample(KINDS, 6)):
        replies[place] = make_malformed(kind, messages[place], model())
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert (metrics["cosdefense-received"], metrics["cosdefense-accepted"]) == (8, 2)
    counts: list[Any] = [value for key, value in metrics.items() if "rejected" in key]
    assert sum(counts) == 6


def test_every_rejection_is_logged_once_counted_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    defended = Defended(STRATEGIES["FedAvg"](), MultiKrum(contamination=0.4, keep=3))
    messages = send_round(defended, model())
    replies = honest_replies(messages)
    replies[2] = make_malformed("an error", messages[2], model())
    with caplog.at_level(logging.WARNING, "flwr"):
        _, metrics = defended.aggregate_train(1, replies, missing=[Rejection(5, Reason.LATE, "no reply")])
    assert metrics is not None
    assert defended.record is not None
    expected = {Reason.ERROR: 1, Reason.LATE: 1, Reason.DEFENSE: 4}
    lines = [entry.getMessage() for entry in caplog.records if "rejected" in entry.getMessage()]
    for reason, count in expected.items():
        assert metrics[f"cosdefense-rejected-{reason}"] == count
        assert defended.record.reasons.count(str(reason)) == count
        assert sum(f"({reason})" in line for line in lines) == count
    assert len(lines) == 6
    assert not any("\n" in line for line in lines)  # clients cannot inject lines into the log
    assert metrics["cosdefense-received"] == 8  # the ninth did not arrive
    assert all(isinstance(value, int | float | list) for value in metrics.values())


@pytest.mark.parametrize("claim", [1e9, 1e300, -250, 0, float("nan"), True, [10, 10], 10**18])
def test_no_number_of_examples_gives_more_than_an_equal_weight(claim: Any) -> None:
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL)
    messages = send_round(defended, start)
    replies = honest_replies(messages)
    shifted = {name: array + 1 for name, array in start.items()}
    body = content({name: array.astype(start[name].dtype) for name, array in shifted.items()}, {"loss": 1.0})
    body["metrics"] = MetricRecord({"loss": 1.25, "accuracies": [0.5, 0.75], "num-examples": 1})
    body.metric_records["metrics"].__dict__["_data"]["num-examples"] = claim
    replies[4] = reply(messages[4], body)
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    others = np.mean([to_arrays(r.content["arrays"])[TARGET] for i, r in enumerate(replies) if i != 4], axis=0)
    share = (to_arrays(arrays)[TARGET] - others) / (start[TARGET] + 1 - others)
    assert share.max() <= 1 / 8 + 1e-5


def test_duplicate_and_unsolicited_replies_do_not_count() -> None:
    """A node twice, a reply to another node's message, an unknown node, a message of the round before."""
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, seed=11)
    grid = LocalGrid(honest)
    old = honest_replies(send_round(defended, start, grid))
    messages = send_round(defended, start, grid, server_round=2)
    replies = honest_replies(messages, 2)
    expected = aggregate(defended, replies)
    unwanted = honest_body({name: array * 3 for name, array in start.items()})
    extra = [
        old[0],
        reply(messages[1], unwanted, src_node_id=messages[0].metadata.dst_node_id),
        reply(messages[2], unwanted, src_node_id=4242),
        reply(messages[3], unwanted, reply_to_message_id=old[3].metadata.reply_to_message_id),
        replies[4],
    ]
    for shuffle in range(20):
        everything = [*replies, *extra]
        random.Random(shuffle).shuffle(everything)
        send_round(defended, start, grid, server_round=2)
        defended.sent = messages
        assert aggregate(defended, everything) == expected
        assert defended.record is not None
        counts = {reason: defended.record.reasons.count(reason) for reason in ("unsolicited", "duplicate")}
        assert counts == {"unsolicited": 4, "duplicate": 1}


def test_a_node_that_replies_twice_counts_once() -> None:
    start, models = model(), set()
    for order in (1, -1):
        defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, seed=11)
        messages = send_round(defended, start)
        other = reply(messages[0], honest_body(trained(start, 99)))
        arrays, metrics = defended.aggregate_train(1, [*honest_replies(messages), other][::order])
        assert arrays is not None
        assert metrics is not None
        assert metrics["cosdefense-accepted"] == 8
        models.add(b"".join(array.data for array in arrays.values()))
    assert len(models) == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam"])
def test_a_hundred_orders_of_arrival_give_one_model(strategy: str) -> None:
    start, models = model(), set()
    for shuffle in range(100):
        defended = Defended(STRATEGIES[strategy](), FoolsGold() if strategy == "FedAvg" else ACCEPT_ALL, seed=11)
        replies = honest_replies(send_round(defended, start))
        random.Random(shuffle).shuffle(replies)
        models.add(str(aggregate(defended, replies)))
    assert len(models) == 1


def test_fortran_order_is_valid() -> None:
    start = model()
    results = []
    for order in "CF":
        defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, seed=11)
        messages = send_round(defended, start)
        replies = honest_replies(messages)
        arrays = replies[0].content.array_records["arrays"]
        values = arrays[TARGET].numpy()
        arrays[TARGET] = raw(npy(np.asarray(values, order=order)), values)  # type: ignore[call-overload]
        assert (b"'fortran_order': True" in arrays[TARGET].data) == (order == "F")
        results.append(aggregate(defended, replies))
    assert results[0] == results[1]


def test_nothing_is_unpickled_and_no_declared_size_is_allocated(tmp_path: Path) -> None:
    """Unpickling would create a file; terabytes would exceed the memory. Metrics are counted before they are read."""
    CANARY[:] = [tmp_path / "canary"]
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL)
    messages = send_round(defended, start)
    defended.aggregate_train(1, honest_replies(messages))  # the first call prepares the type checks of the tests
    for kind in (
        "a hundred thousand metrics",
        "a list of a million numbers",
        "pickle",
        "pickled objects",
        "npz",
        "terabytes declared",
        "structured",
        "npy version 3",
        "big-endian",
    ):
        replies = [make_malformed(kind, messages[0], start), *honest_replies(messages)[1:]]
        tracemalloc.start()
        arrays, _ = defended.aggregate_train(1, replies)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert arrays is not None
        assert peak < 2**20, kind
    assert not CANARY[0].exists()
    CANARY.clear()


def test_unpickling_would_create_the_file(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    CANARY[:] = [tmp_path / "canary"]
    body = honest_body(model())
    CONTENTS["pickled objects"][1](body)
    np.load(io.BytesIO(body.array_records["arrays"][TARGET].data), allow_pickle=True).flat[0].close()
    assert CANARY[0].exists()
    CANARY.clear()


def test_malformed_evaluation_replies_do_not_affect_the_others() -> None:
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL)
    grid = LocalGrid(honest)
    messages = list(defended.configure_evaluate(1, record(model()), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    for kind in KINDS:
        reason, bad = get_reason(kind), make_malformed(kind, messages[0], model())
        if (
            reason in (Reason.METRICS, Reason.EXAMPLES, Reason.ERROR, Reason.UNSOLICITED, Reason.UNREADABLE)
            or "metrics" in kind
        ):
            metrics = defended.aggregate_evaluate(1, [bad, *honest_replies(messages)[1:]])
            assert metrics is not None
            assert metrics["loss"] == 1.25
            assert metrics[f"cosdefense-rejected-{reason}"] == 1, kind
    errors = [make_malformed("an error", message, model()) for message in messages]
    assert defended.aggregate_evaluate(1, errors) == {"cosdefense-rejected-error": 8}
