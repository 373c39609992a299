"""Alarms of a federation in its log, and to a callback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runs.observer import RoundObserver
from ..runs.records import RoundRecord
from ..runs.safe_text import log_failure
from .alarms import Alarm, Monitor
from .rules import DEFAULT_RULES, Rule

log = logging.getLogger("flwr")  # where a ServerApp logs


class Alarms(RoundObserver):
    """Logs every alarm: `Defended(…, observers=[Alarms(on_alarm=send_mail)])`.

    `on_alarm` is called with each `Alarm` when it is raised, and again when it is over (then `until` is not None). That
    happens between two rounds, so it should be quick. What it raises is logged, and ends nothing.
    """

    def __init__(
        self, rules: Sequence[Rule] = DEFAULT_RULES, on_alarm: Callable[[Alarm], object] | None = None
    ) -> None:
        self._rules, self._on_alarm = tuple(rules), on_alarm
        self._monitor = Monitor(self._rules)

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        """Alarms of rounds before the run was resumed were reported then."""
        self._monitor = Monitor(self._rules)
        for record in rounds:
            self._monitor.add(record)

    def recorded(self, record: RoundRecord) -> None:
        for alarm in self._monitor.add(record):
            subject = "" if alarm.node is None else f"node {alarm.name or alarm.node}: "
            if alarm.until is None:
                log.warning("ALARM %s: %s%s", alarm.rule, subject, alarm.message)
            else:
                log.info("alarm %s is over: %sit was raised in round %d", alarm.rule, subject, alarm.round + 1)
            self._call(alarm)

    def _call(self, alarm: Alarm) -> None:
        """One failing call must not keep the other alarms of the round from being reported."""
        try:
            if self._on_alarm:
                self._on_alarm(alarm)
        except Exception as error:
            log_failure(log, error, "the callback for alarms failed; the run continues")
