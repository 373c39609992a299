"""Alarms of a federation: in its log, and to a callback."""

from __future__ import annotations

import pytest
from rounds import all_accepted, make_round

from cosdefense.monitor import Alarm, Alarms, RoundsSkipped


def test_alarms_are_logged_and_given_to_the_callback(caplog: pytest.LogCaptureFixture) -> None:
    given: list[Alarm] = []
    caplog.set_level("INFO", "flwr")
    alarms = Alarms(on_alarm=given.append)
    alarms.started({}, [make_round(number, {1: None, 2: None, 3: "shape"}) for number in range(8)])  # resumed
    assert not given  # that one was reported before
    for number in range(8, 11):
        alarms.recorded(all_accepted(number, skipped="no\x1bquorum"))
    alarms.recorded(all_accepted(11))
    raised, over = given
    assert (raised.rule, raised.round, raised.until) == ("rounds-skipped", 10, None)
    assert (over.rule, over.round, over.until) == ("rounds-skipped", 10, 11)
    assert [line.getMessage() for line in caplog.records] == [
        "ALARM rounds-skipped: 3 rounds in a row were skipped, the last because: no\N{REPLACEMENT CHARACTER}quorum",
        "alarm rounds-skipped is over: it was raised in round 11",
    ]


def test_a_failing_callback_keeps_no_alarm_back(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Alarm) -> None:
        raise RuntimeError("the mail server is down")

    alarms = Alarms((RoundsSkipped(1), RoundsSkipped(2)), fail)
    for number in range(3):
        alarms.recorded(all_accepted(number, skipped="why" if number else None))
    assert caplog.text.count("the callback for alarms failed; the run continues") == 1
    assert caplog.text.count("ALARM rounds-skipped") == 1
