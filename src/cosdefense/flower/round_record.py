"""The record of a round, and the metrics that are added to those of the clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import MetricRecord

from ..core import Verdict
from ..runs.records import RoundRecord
from .reasons import Reason
from .reply_checks import CheckedReplies

PREFIX = "cosdefense"  # of the added metrics
HELPER_FAILED = f"{PREFIX}-helper-failed"  # the helper of secure aggregation was needed and did not do its part


def build_record(
    checked: CheckedReplies, verdict: Verdict | None, skipped: str | None, notes: Mapping[str, tuple[int, ...]]
) -> RoundRecord:
    """First the clients that reached the defense, then the others. The number of the round is filled in later."""
    was_judged = verdict is not None and not (verdict.skipped and not verdict.evidence)  # else: too few clients
    weights = verdict.weights.tolist() if verdict is not None else [0.0] * len(checked.valid)
    reasons = [str(Reason.DEFENSE) if was_judged and not weight else None for weight in weights]
    return RoundRecord.of_verdict(
        0,
        [reply.node for reply in checked.valid],
        verdict,
        excluded=[rejection.node for rejection in checked.rejected],
        skipped=skipped,
        notes=dict(notes),
        reasons=(*reasons, *(str(rejection.reason) for rejection in checked.rejected)),
    )


def build_train_metrics(record: RoundRecord, metrics: MetricRecord | None) -> MetricRecord:
    """The metrics of the clients, and how many replies arrived, counted and were rejected."""
    n_missing = sum(reason in (Reason.LATE, Reason.UNSENT) for reason in record.reasons)
    return MetricRecord(
        {
            **(metrics or {}),
            f"{PREFIX}-received": len(record.clients) - n_missing,
            f"{PREFIX}-accepted": sum(weight != 0 for weight in record.weights),
            f"{PREFIX}-skipped": int(record.skipped is not None),
            **count_rejections(record.reasons),
        }
    )


def build_evaluate_metrics(checked: CheckedReplies, metrics: MetricRecord | None) -> MetricRecord | None:
    counts = count_rejections([str(rejection.reason) for rejection in checked.rejected])
    return MetricRecord({**(metrics or {}), **counts}) if metrics or counts else None


def count_rejections(reasons: Sequence[str | None]) -> dict[str, int]:
    """How many replies were rejected, by reason."""
    counts = Counter(reasons)
    return {f"{PREFIX}-rejected-{reason}": counts[reason] for reason in Reason if counts[reason]}
