"""Malformed replies cost themselves: every kind, first or last, in front of every strategy that averages models."""

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
from federations import LocalGrid, arrays_of, asked, content, honest, model, record, reply, trained
from flwr.app import ConfigRecord, Message, MetricRecord
from malformed import CANARY, CONTENTS, KINDS, TARGET, honest_body, malformed, npy, raw, reason_for
from strategies import STRATEGIES

from cosdefense import Defense, Filter
from cosdefense.aggregators import Median
from cosdefense.core import pack
from cosdefense.filters import Clip, CosDefense, FoolsGold, MultiKrum
from cosdefense.flower import Defended, Reason
from cosdefense.flower.strategy_state import pack_strategy

EVERYBODY = Clip(1e9)  # rejects nobody and rewrites nothing


def honest_replies(messages: list[Message], server_round: int = 1) -> list[Message]:
    start = arrays_of(messages[0].content["arrays"])
    return [reply(m, honest_body(trained(start, m.metadata.dst_node_id, server_round))) for m in messages]


def outcome(defended: Defended, replies: list[Message]) -> dict[str, Any]:
    """All that the next round depends on, and what is told about this one."""
    arrays, metrics = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert all(np.isfinite(array).all() for array in arrays_of(arrays).values())
    packed, (state, tensors) = pack_strategy(defended.strategy), pack(defended.state)
    return {
        "model": {name: (array.dtype, array.shape, array.data) for name, array in arrays.items()},
        "metrics": {key: value for key, value in metrics.items() if not key.startswith("cosdefense")},
        "strategy": (packed.attributes, {k: t.numpy().tobytes() for k, t in packed.tensors.items()}),
        "state": (state, {k: t.numpy().tobytes() for k, t in tensors.items()}),
    }


def compare_with_the_honest_alone(make: Callable[[], Defended], place: int, kinds: Sequence[str] = KINDS) -> None:
    start, first = model(), make()
    messages = asked(first, start)
    replies = honest_replies(messages)  # the same for every try: who is asked is seeded, and nobody consumes them
    message = messages[place]
    del replies[place]
    expected = outcome(first, replies)
    for kind in kinds:
        tried = make()
        asked(tried, start)
        bad = malformed(kind, message, trained(start, 5))
        assert outcome(tried, [bad, *replies] if place == 0 else [*replies, bad]) == expected, kind
        assert tried.record is not None
        assert set(tried.record.reasons) - {None, "defense"} == {reason_for(kind)}, kind


def test_there_are_many_kinds() -> None:
    assert len(KINDS) == 76
    assert len(STRATEGIES) == 14


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_result_is_that_of_the_honest_alone(strategy: str, place: int) -> None:
    """All kinds for FedAvg; half of them, in turn, for the others, unless COSDEFENSE_THOROUGH is set."""
    turn = list(STRATEGIES).index(strategy)
    kinds = KINDS if turn == 0 or os.environ.get("COSDEFENSE_THOROUGH") else KINDS[turn % 2 :: 2]
    compare_with_the_honest_alone(lambda: Defended(STRATEGIES[strategy](), EVERYBODY, seed=11), place, kinds)


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("defense", [CosDefense(), FoolsGold(), Defense((MultiKrum(),), Median())], ids=repr)
def test_neither_judgment_nor_memory_knows_of_them(defense: Defense | Filter, place: int) -> None:
    compare_with_the_honest_alone(lambda: Defended(STRATEGIES["FedAvgM"](), defense, seed=11), place, KINDS[::6])


def test_all_but_two_may_be_malformed() -> None:
    tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY)
    messages = asked(tried, model())
    replies = honest_replies(messages)
    for place, kind in enumerate(random.Random(1).sample(KINDS, 6)):
        replies[place] = malformed(kind, messages[place], model())
    arrays, metrics = tried.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert (metrics["cosdefense-received"], metrics["cosdefense-accepted"]) == (8, 2)
    counts: list[Any] = [value for key, value in metrics.items() if "rejected" in key]
    assert sum(counts) == 6


def test_every_rejection_has_a_code_that_is_logged_once_counted_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    tried = Defended(STRATEGIES["FedAvg"](), MultiKrum(contamination=0.4, keep=3))
    messages = asked(tried, model())
    replies = honest_replies(messages)
    replies[2] = malformed("an error", messages[2], model())
    with caplog.at_level(logging.WARNING, "flwr"):
        _, metrics = tried.aggregate_train(1, replies, lost=[(5, Reason.LATE, "nothing came")])
    assert metrics is not None
    assert tried.record is not None
    expected = {Reason.ERROR: 1, Reason.LATE: 1, Reason.DEFENSE: 4}
    lines = [entry.getMessage() for entry in caplog.records if "rejected" in entry.getMessage()]
    for reason, count in expected.items():
        assert metrics[f"cosdefense-rejected-{reason}"] == count
        assert tried.record.reasons.count(str(reason)) == count
        assert sum(f"({reason})" in line for line in lines) == count
    assert len(lines) == 6
    assert not any("\n" in line for line in lines)  # nobody writes lines of their own into the log
    assert metrics["cosdefense-received"] == 8  # the ninth never came
    assert all(isinstance(value, int | float | list) for value in metrics.values())


@pytest.mark.parametrize("claim", [1e9, 1e300, -250, 0, float("nan"), True, [10, 10], 10**18])
def test_no_claim_of_examples_weighs_more_than_one_in_n(claim: Any) -> None:
    start = model()
    tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY)
    messages = asked(tried, start)
    replies = honest_replies(messages)
    liar = {name: array + 1 for name, array in start.items()}
    body = content({name: array.astype(start[name].dtype) for name, array in liar.items()}, {"loss": 1.0})
    body["metrics"] = MetricRecord({"loss": 1.25, "accuracies": [0.5, 0.75], "num-examples": 1})
    body.metric_records["metrics"].__dict__["_data"]["num-examples"] = claim
    replies[4] = reply(messages[4], body)
    arrays, _ = tried.aggregate_train(1, replies)
    assert arrays is not None
    others = np.mean([arrays_of(r.content["arrays"])[TARGET] for i, r in enumerate(replies) if i != 4], axis=0)
    share = (arrays_of(arrays)[TARGET] - others) / (start[TARGET] + 1 - others)
    assert share.max() <= 1 / 8 + 1e-5


def test_duplicates_and_strangers_never_count() -> None:
    """A node twice, a reply to another node's message, an unknown node, a message of the round before."""
    start = model()
    tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY, seed=11)
    grid = LocalGrid(honest)
    old = honest_replies(asked(tried, start, grid))
    messages = asked(tried, start, grid, server_round=2)
    replies = honest_replies(messages, 2)
    expected = outcome(tried, replies)
    spoiled = honest_body({name: array * 3 for name, array in start.items()})
    extra = [
        old[0],
        reply(messages[1], spoiled, src_node_id=messages[0].metadata.dst_node_id),
        reply(messages[2], spoiled, src_node_id=4242),
        reply(messages[3], spoiled, reply_to_message_id=old[3].metadata.reply_to_message_id),
        replies[4],
    ]
    for shuffle in range(20):
        everything = [*replies, *extra]
        random.Random(shuffle).shuffle(everything)
        asked(tried, start, grid, server_round=2)
        tried._asked = messages
        assert outcome(tried, everything) == expected
        assert tried.record is not None
        counts = {reason: tried.record.reasons.count(reason) for reason in ("unbound", "duplicate")}
        assert counts == {"unbound": 4, "duplicate": 1}


def test_a_node_that_answers_twice_counts_once_whatever_comes_first() -> None:
    start, found = model(), set()
    for order in (1, -1):
        tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY, seed=11)
        messages = asked(tried, start)
        other = reply(messages[0], honest_body(trained(start, 99)))
        arrays, metrics = tried.aggregate_train(1, [*honest_replies(messages), other][::order])
        assert arrays is not None
        assert metrics is not None
        assert metrics["cosdefense-accepted"] == 8
        found.add(b"".join(array.data for array in arrays.values()))
    assert len(found) == 1


@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam"])
def test_a_hundred_orders_of_arrival_give_one_model(strategy: str) -> None:
    start, found = model(), set()
    for shuffle in range(100):
        tried = Defended(STRATEGIES[strategy](), FoolsGold() if strategy == "FedAvg" else EVERYBODY, seed=11)
        replies = honest_replies(asked(tried, start))
        random.Random(shuffle).shuffle(replies)
        found.add(str(outcome(tried, replies)))
    assert len(found) == 1


def test_columns_first_is_a_valid_order() -> None:
    start = model()
    results = []
    for order in "CF":
        tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY, seed=11)
        messages = asked(tried, start)
        replies = honest_replies(messages)
        arrays = replies[0].content.array_records["arrays"]
        values = arrays[TARGET].numpy()
        arrays[TARGET] = raw(npy(np.asarray(values, order=order)), values)  # type: ignore[call-overload]
        assert (b"'fortran_order': True" in arrays[TARGET].data) == (order == "F")
        results.append(outcome(tried, replies))
    assert results[0] == results[1]


def test_nothing_is_unpickled_and_no_promise_is_allocated(tmp_path: Path) -> None:
    """A canary would leave a file; terabytes would not fit."""
    CANARY[:] = [tmp_path / "canary"]
    start = model()
    tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY)
    messages = asked(tried, start)
    for kind in ("pickle", "pickled objects", "npz", "terabytes promised", "structured", "npy version 3", "big-endian"):
        replies = [malformed(kind, messages[0], start), *honest_replies(messages)[1:]]
        tracemalloc.start()
        arrays, _ = tried.aggregate_train(1, replies)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert arrays is not None
        assert peak < 2**20
    assert not CANARY[0].exists()
    CANARY.clear()


def test_the_canary_would_sing(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    CANARY[:] = [tmp_path / "canary"]
    body = honest_body(model())
    CONTENTS["pickled objects"][1](body)
    np.load(io.BytesIO(body.array_records["arrays"][TARGET].data), allow_pickle=True).flat[0].close()
    assert CANARY[0].exists()
    CANARY.clear()


def test_evaluation_survives_every_kind_of_metrics() -> None:
    tried = Defended(STRATEGIES["FedAvg"](), EVERYBODY)
    grid = LocalGrid(honest)
    messages = list(tried.configure_evaluate(1, record(model()), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    for kind in KINDS:
        reason, bad = reason_for(kind), malformed(kind, messages[0], model())
        if (
            reason in (Reason.METRICS, Reason.EXAMPLES, Reason.ERROR, Reason.UNBOUND, Reason.BROKEN)
            or "metrics" in kind
        ):
            metrics = tried.aggregate_evaluate(1, [bad, *honest_replies(messages)[1:]])
            assert metrics is not None
            assert metrics["loss"] == 1.25
            assert metrics[f"cosdefense-rejected-{reason}"] == 1, kind
    errors = [malformed("an error", message, model()) for message in messages]
    assert tried.aggregate_evaluate(1, errors) == {"cosdefense-rejected-error": 8}
