"""What a page or a terminal shows of a run, as JSON values. Its size does not grow with the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..runs.records import RoundRecord
from ..runs.safe_text import printable
from .alarms import Alarm, Monitor
from .history import ACCEPTED, UNJUDGED, NodeHistory, get_outcomes, get_scores
from .rules import DEFAULT_RULES, Rule

Json = dict[str, Any]
Point = list[int | float | None]  # the round, then values

MAX_POINTS = 600  # of a curve: more than a page has pixels for
MAX_RECENT = 15  # rounds that are listed
MAX_REJECTED = 20  # nodes that are listed in a round
MAX_NODES = 200  # that are listed
MAX_ALARMS = 50
MAX_OUTCOMES = 20  # of a node


@dataclass
class Curve:
    """Points over the rounds. When there are too many, every second one is dropped."""

    points: list[Point] = field(default_factory=list)
    every: int = 1
    n_added: int = 0
    last: Point | None = None

    def add(self, point: Point) -> None:
        if self.n_added % self.every == 0:
            self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points, self.every = self.points[::2], 2 * self.every
        self.n_added += 1
        self.last = point

    def to_json(self) -> list[Point]:
        """The last point is always among them."""
        is_missing = self.last is not None and self.points[-1] is not self.last
        return [*self.points, *([self.last] if is_missing and self.last else [])]


class RunView:
    """A run that is added round by round."""

    def __init__(self, header: Mapping[str, Any], rules: Sequence[Rule] = DEFAULT_RULES) -> None:
        self.header = header
        self.monitor = Monitor(rules)
        self._evaluations, self._replies = Curve(), Curve()
        self._recent: deque[RoundRecord] = deque(maxlen=MAX_RECENT)

    def add(self, record: RoundRecord) -> list[Alarm]:
        """Returns the alarms that the round raises or ends."""
        changed = self.monitor.add(record)
        if record.accuracy is not None or record.loss is not None:
            self._evaluations.add(_to_evaluation(record))
        self._replies.add(_to_replies(record))
        self._recent.append(record)
        return changed

    def snapshot(self) -> Json:
        """All that is shown."""
        nodes = sorted(self.monitor.history.nodes.items(), key=lambda item: _rank(item[1]))[:MAX_NODES]
        return self._describe_run() | {
            "evaluations": self._evaluations.to_json(),
            "replies": self._replies.to_json(),
            "rounds": [self._describe_round(record) for record in self._recent],
            "nodes": [self._describe_node(*item) for item in nodes],
        }

    def update(self, added: Sequence[RoundRecord]) -> Json:
        """What is new after these rounds, which were added last."""
        nodes = self.monitor.history.nodes
        seen = dict.fromkeys(client for record in added for client in record.clients if client in nodes)
        ranked = sorted(((client, nodes[client]) for client in seen), key=lambda item: _rank(item[1]))[:MAX_NODES]
        evaluated = [record for record in added if record.accuracy is not None or record.loss is not None]
        return self._describe_run() | {
            "evaluations": [_to_evaluation(record) for record in evaluated[-MAX_POINTS:]],
            "replies": [_to_replies(record) for record in added[-MAX_POINTS:]],
            "rounds": [self._describe_round(record) for record in added[-MAX_RECENT:]],
            "nodes": [self._describe_node(*item) for item in ranked],
        }

    def label(self, client: int) -> str:
        """The operator's name for a node, or its id."""
        node = self.monitor.history.nodes.get(client)
        if node is not None and node.name:
            return printable(node.name, 60)
        return "unknown sender" if client == 0 and self._is_federation else str(client)

    @property
    def _is_federation(self) -> bool:
        return self.header.get("device") == "Flower"

    def _describe_run(self) -> Json:
        history, experiment = self.monitor.history, self.header.get("experiment", {})
        planned = experiment.get("training", {}).get("rounds") if isinstance(experiment.get("training"), dict) else None
        return {
            "title": printable(self.header.get("defense", "run")),
            "experiment": printable(experiment.get("name", "")),
            "strategy": printable(experiment.get("strategy", "")),
            "attack": printable(self.header.get("attack", "")),
            "planned": planned if isinstance(planned, int) else None,
            "n_rounds": history.n_rounds,
            "n_skipped": history.n_skipped,
            "n_nodes": len(history.nodes),
            "accuracy": _number(history.accuracy),
            "best_accuracy": _number(history.best_accuracy),
            "loss": _number(history.loss),
            "n_accepted": history.n_accepted,
            "rejected": {printable(reason, 40): n for reason, n in history.rejected.most_common()},
            "seconds": {printable(phase, 40): _number(seconds) for phase, seconds in history.seconds.items()},
            "n_bytes": {printable(phase, 40): _number(n_bytes) for phase, n_bytes in history.n_bytes.items()},
            "alarms": self._describe_alarms(list(self.monitor.active.values())[-MAX_ALARMS:]),
            "past_alarms": self._describe_alarms(list(self.monitor.past)[-MAX_ALARMS:]),
            "n_alarms": len(self.monitor.active),
        }

    def _describe_alarms(self, alarms: Iterable[Alarm]) -> list[Json]:
        return [
            {
                "rule": alarm.rule, "node": None if alarm.node is None else self.label(alarm.node),
                "message": alarm.message, "round": alarm.round, "until": alarm.until,
            }
            for alarm in alarms
        ]  # fmt: skip

    def _describe_round(self, record: RoundRecord) -> Json:
        rejected = [
            {
                "node": self.label(client),
                "reason": printable(outcome, 40),
                "scores": _to_scores(get_scores(record, row)),
            }
            for row, (client, outcome) in enumerate(zip(record.clients, get_outcomes(record), strict=True))
            if outcome not in (ACCEPTED, UNJUDGED)
        ]
        return {
            "round": record.round,
            "accuracy": _number(record.accuracy),
            "loss": _number(record.loss),
            "skipped": _get_note(record),
            "n_accepted": sum(outcome == ACCEPTED for outcome in get_outcomes(record)),
            "n_clients": len(record.clients),
            "n_rejected": len(rejected),
            "rejected": rejected[:MAX_REJECTED],
            "seconds": {printable(phase, 40): _number(seconds) for phase, seconds in record.seconds.items()},
            "n_bytes": {printable(phase, 40): _number(n_bytes) for phase, n_bytes in record.n_bytes.items()},
        }

    def _describe_node(self, client: int, node: NodeHistory) -> Json:
        return {
            "id": str(client),  # a string: JavaScript's numbers are too short for a node id
            "name": self.label(client),
            "n_asked": node.n_asked,
            "n_accepted": node.n_accepted,
            "last_round": node.last_round,
            "reasons": {printable(reason, 40): n for reason, n in node.reasons.most_common(5)},
            "outcomes": [printable(outcome, 40) for outcome in list(node.outcomes)[-MAX_OUTCOMES:]],
            "scores": _to_scores(node.scores),
        }


def _get_note(record: RoundRecord) -> str | None:
    if record.lost:
        return "the record of this round was damaged"
    return None if record.skipped is None else printable(record.skipped)


def _to_evaluation(record: RoundRecord) -> Point:
    return [record.round, _number(record.accuracy), _number(record.loss)]


def _to_replies(record: RoundRecord) -> Point:
    """Round, accepted, not accepted, seconds, and whether it was skipped."""
    n_accepted = sum(outcome == ACCEPTED for outcome in get_outcomes(record))
    seconds = _number(sum(record.seconds.values()))
    return [record.round, n_accepted, len(record.clients) - n_accepted, seconds, int(record.skipped is not None)]


def _to_scores(scores: Mapping[str, float]) -> dict[str, int | float | None]:
    return {printable(name, 40): _number(score) for name, score in scores.items()}


def _rank(node: NodeHistory) -> tuple[float, int]:
    """The nodes that are accepted least often come first."""
    return (node.n_accepted / node.n_asked, -node.n_asked)


def _number(value: int | float | None) -> int | float | None:
    """Six digits are enough; JSON knows neither NaN nor infinity."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
