"""What is told about a round: a record for the file, and numbers beside those that clients sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import MetricRecord

from ..core import Verdict
from ..runs.records import RoundRecord
from .guard import Inspection
from .reasons import Reason

PREFIX = "cosdefense"  # of what is added to a round's metrics


def record_of(found: Inspection, verdict: Verdict | None, skipped: str | None) -> RoundRecord:
    """Those who were judged first, then those whose reply never got that far. Its number is not known here."""
    nodes = [answer.node for answer in found.answers]
    weights = verdict.weights.tolist() if verdict else [0.0] * len(nodes)
    judged = [None if weight or verdict is None else str(Reason.DEFENSE) for weight in weights]
    return RoundRecord(
        round=0,
        clients=(*nodes, *(node for node, _, _ in found.refused)),
        weights=(*weights, *(0.0 for _ in found.refused)),
        skipped=skipped,
        reasons=(*judged, *(str(reason) for _, reason, _ in found.refused)),
        scores={name: _padded(map(_known, values.tolist()), found) for name, values in verdict.evidence.items()}
        if verdict
        else {},
        points={name: _padded(map(_place, values.tolist()), found) for name, values in verdict.points.items()}
        if verdict
        else {},
    )


def train_metrics(record: RoundRecord, metrics: MetricRecord | None) -> MetricRecord:
    """What clients sent, who counted and who did not."""
    missing = sum(reason in (Reason.LATE, Reason.UNSENT) for reason in record.reasons)
    told = MetricRecord(dict(metrics) if metrics else {})
    told[f"{PREFIX}-received"] = len(record.clients) - missing
    told[f"{PREFIX}-accepted"] = sum(weight != 0 for weight in record.weights)
    told[f"{PREFIX}-skipped"] = int(record.skipped is not None)
    told.update(rejections(record.reasons))
    return told


def evaluate_metrics(found: Inspection, metrics: MetricRecord | None) -> MetricRecord | None:
    counts = rejections([str(reason) for _, reason, _ in found.refused])
    return MetricRecord({**(metrics or {}), **counts}) if metrics or counts else None


def rejections(reasons: Sequence[str | None]) -> dict[str, int]:
    """How many replies were rejected, by cause."""
    counts = Counter(reasons)
    return {f"{PREFIX}-rejected-{reason}": counts[reason] for reason in Reason if counts[reason]}


def _padded(values: Iterable[Any], found: Inspection) -> tuple[Any, ...]:
    return (*values, *(None for _ in found.refused))


def _known(value: float) -> float | None:
    return None if value != value else value


def _place(point: list[float]) -> tuple[float, float] | None:
    return None if point[0] != point[0] else (point[0], point[1])
