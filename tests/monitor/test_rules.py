"""Alarms: plain lists of records in, alarms out."""

from __future__ import annotations

import itertools
import random

import pytest
from rounds import all_accepted, make_round

from cosdefense.monitor import AccuracyFell, Alarm, NodeLost, NodeRejected, RoundsSkipped, find_alarms
from cosdefense.monitor.rules import at_least
from cosdefense.runs.records import RoundRecord

NODES = range(1, 11)


def one_rejected(number: int, node: int = 3, reason: str = "defense") -> RoundRecord:
    return make_round(number, {**dict.fromkeys(NODES), node: reason})


@pytest.mark.parametrize(("n", "of", "share"), [(0, 4, 0.3), (2, 6, 0.5), (5, 5, 0.1), (3, 8, 0.8)])
def test_the_probability_is_that_of_all_sequences_together(n: int, of: int, share: float) -> None:
    total = 0.0
    for sequence in itertools.product((False, True), repeat=of):
        if sum(sequence) >= n:
            total += share ** sum(sequence) * (1 - share) ** (of - sum(sequence))
    assert at_least(n, of, share) == pytest.approx(total)


# ---- a node that is rejected


def test_a_node_that_is_always_rejected_is_named_after_five_rounds() -> None:
    """Nine others were never rejected in five rounds: by Laplace's rule 1 of 47, and (1/47)^5 is below 1e-6."""
    (alarm,) = find_alarms(one_rejected(number) for number in range(30))
    assert (alarm.rule, alarm.node, alarm.round, alarm.until) == ("node-rejected", 3, 4, None)
    assert alarm.message == "rejected in 20 of its last 20 replies (defense), others in 1%"
    assert not find_alarms(one_rejected(number) for number in range(4))


def test_the_alarm_is_raised_once_and_ends() -> None:
    rounds = [one_rejected(number) for number in range(30)] + [all_accepted(number) for number in range(30, 60)]
    (alarm,) = find_alarms(rounds)
    assert alarm.until is not None
    # 20 replies later, none of those that are remembered was rejected; for the first ten, most were
    assert 40 < alarm.until < 50


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_rule_that_rejects_honest_nodes_by_design_raises_no_alarm(share: float) -> None:
    """Multi-Krum rejects a fixed share of every round, CosDefense about a half."""
    rng = random.Random(1)
    rounds = [
        make_round(number, {node: "defense" if node in rejected else None for node in NODES})
        for number in range(400)
        if (rejected := rng.sample(NODES, round(share * 10)))
    ]
    assert not find_alarms(rounds, (NodeRejected(),))


def test_an_attacker_is_named_among_honest_nodes_that_are_rejected_too() -> None:
    rng = random.Random(1)
    rounds = []
    for number in range(40):
        rejected = {3, *rng.sample([node for node in NODES if node != 3], 2)}
        rounds.append(make_round(number, {node: "defense" if node in rejected else None for node in NODES}))
    (alarm,) = find_alarms(rounds, (NodeRejected(),))
    assert alarm.node == 3
    assert 8 <= alarm.round <= 12


def test_all_reasons_but_silence_count() -> None:
    reasons = ["shape", "not-finite", "shape", "shape", "defense", "shape"]
    rounds = [one_rejected(number, reason=reason) for number, reason in enumerate(reasons)]
    (alarm,) = find_alarms(rounds, (NodeRejected(),))
    assert "(shape, not-finite, defense)" in alarm.message
    late = [one_rejected(number, reason="late") for number in range(30)]
    assert not find_alarms(late, (NodeRejected(),))


def test_nobody_is_rejected_by_a_round_that_was_skipped() -> None:
    skipped = [RoundRecord(number, (1, 2), (0.0, 0.0), reasons=(None, None), skipped="why") for number in range(30)]
    assert not find_alarms(skipped, (NodeRejected(),))


def test_a_simulation_writes_no_reasons() -> None:
    weights = (0.0, *(1.0,) * 9)
    (alarm,) = find_alarms(RoundRecord(number, tuple(NODES), weights) for number in range(10))
    assert (alarm.node, alarm.rule) == (1, "node-rejected")


# ---- a node that is lost


def test_a_node_that_no_longer_replies_is_named_until_it_does() -> None:
    """Never late in 20 rounds: by Laplace's rule 1 of 22, and (1/22)^5 is the first power below 1e-6."""
    rounds = [all_accepted(number) for number in range(20)]
    rounds += [one_rejected(number, reason="late") for number in range(20, 30)]
    rounds += [all_accepted(30)]
    (alarm,) = find_alarms(rounds)
    assert (alarm.rule, alarm.node, alarm.round, alarm.until) == ("node-lost", 3, 24, 30)
    assert alarm.message == "no reply to its last 10 messages; 20 of its 20 replies were accepted"


def test_a_node_that_is_no_longer_connected_is_named() -> None:
    rounds = [all_accepted(number) for number in range(20)]
    rounds += [make_round(number, dict.fromkeys(range(1, 10))) for number in range(20, 30)]
    (alarm,) = find_alarms(rounds)
    assert (alarm.rule, alarm.node, alarm.round) == ("node-lost", 10, 24)
    assert alarm.message.startswith("not in the last 10 rounds;")


def test_nodes_that_are_sampled_rarely_or_late_often_are_not_lost() -> None:
    rng = random.Random(1)
    rounds = [
        make_round(number, {node: rng.choice([None, None, "late"]) for node in rng.sample(range(1, 31), 10)})
        for number in range(500)
    ]
    assert not find_alarms(rounds, (NodeLost(),))


def test_a_node_that_never_counted_is_not_missed() -> None:
    rounds = [one_rejected(number) for number in range(20)]
    rounds += [one_rejected(number, reason="late") for number in range(20, 60)]
    assert not find_alarms(rounds, (NodeLost(),))


# ---- the run


def test_skipped_rounds_in_a_row() -> None:
    def play(*skipped: str | None) -> list[Alarm]:
        return find_alarms(all_accepted(number, skipped=reason) for number, reason in enumerate(skipped))

    assert not play("a", "a", None, "a", "a")
    first, second = play("a", "a", "b", None, "c", "c", "c")
    assert (first.rule, first.node, first.round, first.until) == ("rounds-skipped", None, 2, 3)
    assert first.message == "3 rounds in a row were skipped, the last because: b"
    assert (second.round, second.until) == (6, None)


def test_falling_accuracy() -> None:
    def play(*accuracies: float | None) -> list[Alarm]:
        return find_alarms(all_accepted(number, accuracy=value) for number, value in enumerate(accuracies))

    assert not play(0.5, 0.8, 0.66, 0.8, None, 0.7)
    (alarm,) = play(0.5, 0.8, None, 0.6, 0.7, 0.75)
    assert (alarm.rule, alarm.round, alarm.until) == ("accuracy-fell", 3, 5)  # 0.7 is still half way down
    assert alarm.message.startswith("the accuracy is 60.0%; the best of the last 3 evaluations is 80.0%")
    assert not play(0.8, float("nan"))
    (alarm,) = find_alarms([all_accepted(n, accuracy=0.9 - n / 10) for n in range(9)], (AccuracyFell(by=0.25, of=4),))
    assert alarm.round == 3


def test_rules_are_values() -> None:
    assert NodeRejected() == NodeRejected(5, 20)
    assert len({RoundsSkipped(), RoundsSkipped(3), RoundsSkipped(4)}) == 2
    for build in (lambda: NodeRejected(of=51), lambda: NodeRejected(times=21), lambda: NodeLost(of=0)):
        with pytest.raises(ValueError, match="needs 1 ≤"):
            build()


def test_messages_hold_no_control_characters() -> None:
    (alarm,) = find_alarms(all_accepted(number, skipped="\x1b[31m\u202e\n") for number in range(3))
    assert alarm.message.isprintable()
