"""What became of each client of a run: how often it was rejected, and how well the model serves it at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .records import RoundRecord, RunRecord

MIN_JUDGED = 5  # rounds; a client that was rejected in its only round says little


@dataclass(frozen=True)
class ClientOutcome:
    """One client. Malicious in any round counts as malicious, and then only rounds with the attack are counted."""

    client: int
    malicious: bool
    judged: int  # rounds in which a filter judged it
    rejected: int  # those in which it was rejected

    @property
    def share(self) -> float:
        """The share of those rounds in which it was rejected."""
        return self.rejected / self.judged if self.judged else 0.0


def list_outcomes(rounds: Iterable[RoundRecord]) -> list[ClientOutcome]:
    """Every client that a filter judged, those most often rejected first. Empty where nobody knows who is malicious."""
    fates: dict[int, dict[bool, list[bool]]] = {}
    for record in rounds:
        if record.malicious is None or not record.defended:
            continue
        for row, (client, malicious) in enumerate(zip(record.clients, record.malicious, strict=True)):
            if any(scores[row] is not None for scores in record.scores.values()):
                fates.setdefault(client, {}).setdefault(malicious, []).append(record.weights[row] == 0)
    outcomes = [
        ClientOutcome(client, max(by_truth), len(own := by_truth[max(by_truth)]), sum(own))
        for client, by_truth in fates.items()
    ]
    return sorted(outcomes, key=lambda outcome: (-outcome.share, outcome.client))


def find_most_rejected(rounds: Sequence[RoundRecord]) -> ClientOutcome | None:
    """The honest client that was rejected most often, among those that were judged in several rounds."""
    honest = [outcome for outcome in list_outcomes(rounds) if not outcome.malicious]
    least = min(MIN_JUDGED, max((outcome.judged for outcome in honest), default=0))
    return next((outcome for outcome in honest if outcome.judged >= least), None)


def summarize_clients(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """For the summary of a run: the most-rejected honest client and the worst-served client."""
    summary: dict[str, Any] = {}
    measured = find_client_metrics(rounds)
    most = find_most_rejected(rounds)
    if most is not None:
        summary["most_rejected_honest"] = most.share
        summary["most_rejected_client"] = {
            "client": most.client, "rejected": most.share, "rounds": most.judged, **_select(measured, most.client)
        }  # fmt: skip
    worst = find_worst_served(measured, list_malicious(rounds))
    if worst is not None:
        summary["worst_client"] = {"client": worst, **_select(measured, worst)}
        if (accuracy := summary["worst_client"].get("accuracy")) is not None:
            summary["worst_client_accuracy"] = accuracy
    return summary


def find_client_metrics(rounds: Sequence[RoundRecord]) -> Mapping[str, tuple[float | None, ...]]:
    """Those of the last evaluation: by name, one number per client."""
    return next((record.client_metrics for record in reversed(rounds) if record.client_metrics), {})


def find_worst_served(measured: Mapping[str, Sequence[float | None]], malicious: Iterable[int] = ()) -> int | None:
    """The honest client with the lowest accuracy; where targets are values, the one with the highest loss."""
    key, sign = ("accuracy", 1) if "accuracy" in measured else ("loss", -1)
    excluded = set(malicious)
    known = [(sign * value, client) for client, value in enumerate(measured.get(key, ())) if value is not None]
    honest = [(value, client) for value, client in known if client not in excluded]
    return min(honest)[1] if honest else None


def estimate_accuracies(run: RunRecord) -> list[float | None]:
    """The accuracy that each client can expect, from the recall of each class and the client's samples of it.

    For data without test samples of each client. It assumes that samples of one class are alike for all clients.
    """
    recalls = next((record.class_recalls for record in reversed(run.rounds) if record.class_recalls), ())
    split: Sequence[Sequence[int]] = run.header.get("split") or ()
    estimates: list[float | None] = []
    for counts in split:
        pairs = list(zip(counts, recalls, strict=False)) if len(counts) == len(recalls) else []
        total = sum(count for count, recall in pairs if recall is not None)
        correct = sum(count * recall for count, recall in pairs if recall is not None)
        estimates.append(correct / total if total else None)
    return estimates


def list_malicious(rounds: Iterable[RoundRecord]) -> set[int]:
    """Clients that attacked in any round."""
    pairs = [pair for record in rounds for pair in zip(record.clients, record.malicious or (), strict=False)]
    return {client for client, malicious in pairs if malicious}


def _select(measured: Mapping[str, Sequence[float | None]], client: int) -> dict[str, float | None]:
    return {name: values[client] for name, values in measured.items() if client < len(values)}
