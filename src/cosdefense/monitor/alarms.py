"""Alarms: records in, alarms out. Page, terminal, log and metrics all get theirs from here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..runs.records import RoundRecord
from ..runs.safe_text import printable
from .history import RunHistory
from .rules import DEFAULT_RULES, Rule

MAX_PAST = 100  # alarms that are over


@dataclass(frozen=True)
class Alarm:
    """Something that an operator should look at."""

    rule: str
    message: str
    round: int  # in which it was raised; rounds count from 0, as in the records
    node: int | None = None  # None: it concerns the run
    name: str = ""  # of the node, if the operator gave it one
    until: int | None = None  # the round in which it was over; None: it is not


class Monitor:
    """Follows a run: adds round after round to its history, and says which alarms are raised and which are over."""

    def __init__(self, rules: Sequence[Rule] = DEFAULT_RULES) -> None:
        self.rules = tuple(rules)
        self.history = RunHistory()
        self.active: dict[tuple[str, int | None], Alarm] = {}
        self.past: deque[Alarm] = deque(maxlen=MAX_PAST)
        self.n_raised: Counter[str] = Counter()  # by rule

    def add(self, record: RoundRecord) -> list[Alarm]:
        """The alarms that this round raises, and those that it ends (`until` is this round)."""
        self.history.add(record)
        changed: list[Alarm] = []
        for rule in self.rules:
            active = {node for name, node in self.active if name == rule.name}
            for node, message in rule.check(self.history, active):
                key = (rule.name, node)
                if message is None:
                    changed += self._end(key, record.round)
                elif key not in self.active:
                    name = "" if node is None else self.history.nodes[node].name
                    self.active[key] = Alarm(rule.name, printable(message), record.round, node, printable(name, 60))
                    self.n_raised[rule.name] += 1
                    changed.append(self.active[key])
                else:
                    self.active[key] = replace(self.active[key], message=printable(message))
        for key in [key for key in self.active if key[1] is not None and key[1] not in self.history.nodes]:
            changed += self._end(key, record.round)  # a node that is forgotten
        return changed

    def _end(self, key: tuple[str, int | None], number: int) -> list[Alarm]:
        if key not in self.active:
            return []
        alarm = replace(self.active.pop(key), until=number)
        self.past.append(alarm)
        return [alarm]


def find_alarms(rounds: Iterable[RoundRecord], rules: Sequence[Rule] = DEFAULT_RULES) -> list[Alarm]:
    """All alarms that these rounds raise, in order, as they are after the last round."""
    monitor, alarms = Monitor(rules), dict[tuple[str, int | None, int], Alarm]()
    for record in rounds:
        for alarm in (*monitor.add(record), *monitor.active.values()):
            alarms[alarm.rule, alarm.node, alarm.round] = alarm
    return list(alarms.values())
