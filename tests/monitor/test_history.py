"""What is remembered of a run: right totals, in bounded memory."""

from __future__ import annotations

import random
from collections import Counter

from rounds import all_accepted, make_round

from cosdefense.monitor.alarms import MAX_PAST, Monitor
from cosdefense.monitor.history import MAX_REASONS, RunHistory
from cosdefense.monitor.rules import NodeLost, RoundsSkipped

REASONS = (None, None, None, "defense", "late", "shape")


def test_totals_are_those_of_all_rounds() -> None:
    rng = random.Random(2)
    rounds = [
        make_round(
            number, {node: rng.choice(REASONS) for node in rng.sample(range(20), 6)},
            seconds={"train": 1.5, "evaluate": number}, n_bytes={"train-sent": 10}, accuracy=rng.random(),
        )
        for number in range(100)
    ]  # fmt: skip
    run = RunHistory()
    for record in rounds:
        run.add(record)
    flat = [pair for record in rounds for pair in zip(record.clients, record.reasons, strict=True)]
    assert run.n_accepted == sum(reason is None for _, reason in flat)
    assert run.rejected == Counter(reason for _, reason in flat if reason)
    assert run.seconds == {"train": 150.0, "evaluate": sum(range(100))}
    assert run.n_bytes == {"train-sent": 1000}
    assert (run.accuracy, run.best_accuracy) == (rounds[-1].accuracy, max(record.accuracy or 0 for record in rounds))
    for node, seen in run.nodes.items():
        own = [reason for client, reason in flat if client == node]
        assert (seen.n_asked, seen.n_accepted) == (len(own), own.count(None))
        assert seen.reasons == Counter(reason for reason in own if reason)
        assert list(seen.outcomes) == [reason or "accepted" for reason in own][-50:]


def test_nodes_are_forgotten_when_there_are_too_many() -> None:
    monitor = Monitor((NodeLost(),))
    monitor.history.max_nodes = 5
    for number in range(20):
        monitor.add(make_round(number, {1: None, 2: None}))
    for number in range(20, 40):
        monitor.add(make_round(number, {1: None}))
    assert [alarm.node for alarm in monitor.active.values()] == [2]
    for number in range(40, 44):  # somebody who comes back under a new name every round
        monitor.add(make_round(number, {1: None, 100 + number: None}))
    assert set(monitor.history.nodes) == {1, 140, 141, 142, 143}
    assert not monitor.active
    assert [(alarm.node, alarm.until) for alarm in monitor.past] == [(2, 43)]


def test_reasons_and_past_alarms_are_bounded() -> None:
    monitor = Monitor((RoundsSkipped(in_a_row=1),))
    for number in range(500):
        monitor.add(make_round(number, {1: f"reason {number}"}, skipped="s" if number % 2 else None))
    assert len(monitor.history.rejected) == MAX_REASONS + 1
    assert sum(monitor.history.rejected.values()) == 500
    assert (len(monitor.past), monitor.n_raised["rounds-skipped"]) == (MAX_PAST, 250)


def test_an_evaluation_that_is_not_finite_is_not_the_best() -> None:
    run = RunHistory()
    for number, accuracy in enumerate((0.5, float("nan"), float("inf"), None)):
        run.add(all_accepted(number, accuracy=accuracy))
    assert (run.accuracy, run.best_accuracy) == (0.5, 0.5)
