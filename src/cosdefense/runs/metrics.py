"""Measures of a run: pure functions of its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from .client_outcomes import summarize_clients
from .records import RoundRecord, RunRecord


@dataclass(frozen=True)
class Detection:
    """The confusion matrix of the filters: clients are counted once per round in which a filter judged them.

    Updates that are not finite never reach a filter, so they are not counted: once a model has collapsed, honest
    clients send them too.
    """

    malicious_rejected: int
    malicious_accepted: int
    honest_rejected: int
    honest_accepted: int
    clean_honest_rejected: int  # the same, in rounds without malicious clients
    clean_honest_accepted: int

    @classmethod
    def of(cls, rounds: Iterable[RoundRecord]) -> Detection:
        counts = dict.fromkeys(cls.__dataclass_fields__, 0)
        for record in rounds:
            if record.malicious is None or not record.defended:
                continue
            clean = not any(record.malicious)
            for row, (malicious, weight) in enumerate(zip(record.malicious, record.weights, strict=True)):
                if all(scores[row] is None for scores in record.scores.values()):
                    continue
                fate = "rejected" if weight == 0 else "accepted"
                counts[f"{'malicious' if malicious else 'honest'}_{fate}"] += 1
                if clean:
                    counts[f"clean_honest_{fate}"] += 1
        return cls(**counts)

    @property
    def recall(self) -> float | None:
        """The share of malicious updates that were rejected."""
        return _share(self.malicious_rejected, self.malicious_accepted)

    @property
    def precision(self) -> float | None:
        """The share of rejected updates that were malicious."""
        return _share(self.malicious_rejected, self.honest_rejected)

    @property
    def false_positive_rate(self) -> float | None:
        """The share of honest updates that were rejected."""
        return _share(self.honest_rejected, self.honest_accepted)

    @property
    def clean_false_positive_rate(self) -> float | None:
        """The share of honest updates rejected in rounds without malicious clients."""
        return _share(self.clean_honest_rejected, self.clean_honest_accepted)


def area_under_roc(rounds: Iterable[RoundRecord], filter_name: str) -> float | None:
    """How often a malicious client scores above an honest one of the same round; a tie counts half.

    Only clients of one round are compared: scores of different rounds may be on different scales.
    """
    wins = pairs = 0.0
    for record in rounds:
        scores = record.scores.get(filter_name)
        if scores is None or record.malicious is None or not record.defended:
            continue
        pairs_of_round = zip(scores, record.malicious, strict=True)
        known = [(score, is_malicious) for score, is_malicious in pairs_of_round if score is not None]
        malicious = [score for score, is_malicious in known if is_malicious]
        honest = [score for score, is_malicious in known if not is_malicious]
        pairs += len(malicious) * len(honest)
        wins += sum((high > low) + 0.5 * (high == low) for high in malicious for low in honest)
    return wins / pairs if pairs else None


def tail_mean(rounds: Sequence[RoundRecord], share: float = 0.1, key: str = "accuracy") -> float | None:
    """Mean accuracy over the evaluations in the last tenth of the rounds (at least one evaluation)."""
    return mean_of_tail([(record.round, getattr(record, key)) for record in rounds], share)


def mean_of_tail(measured: Sequence[tuple[int, float | None]], share: float = 0.1) -> float | None:
    """The mean of what is known in the last tenth of the rounds, at least one number; `measured` has all rounds."""
    evaluated = [(number, value) for number, value in measured if value is not None]
    if not evaluated:
        return None
    first = measured[-1][0] + 1 - math.ceil(share * (measured[-1][0] + 1))
    tail = [value for number, value in evaluated if number >= first] or [evaluated[-1][1]]
    return sum(tail) / len(tail)


def final_accuracy(rounds: Sequence[RoundRecord]) -> float | None:
    return _last(record.accuracy for record in rounds)


def summary_of(run: RunRecord) -> dict[str, Any]:
    """The summary of a finished run, which may have kept only some of its rounds; else one of the rounds so far."""
    return dict(run.summary) if run.summary else summarize(run.rounds, attack_stop_of(run))


def attack_stop_of(run: RunRecord) -> int | None:
    """The first round without the attack again, if the experiment has one."""
    schedule = (run.header.get("experiment") or {}).get("schedule") or {}
    stop = schedule.get("attack_stop")
    return stop if isinstance(stop, int) else None


def success_lifespan(rounds: Iterable[RoundRecord], attack_stop: int | None, threshold: float = 0.5) -> int | None:
    """For how many rounds after the last attack the success rate stays at `threshold` or above.

    It is counted up to the last evaluation before the success rate first falls below, so it is exact to
    `evaluate_every` rounds. If the success rate never falls below, this is the number of rounds that were watched.
    """
    if attack_stop is None:
        return None
    measured = [(record.round, record.attack_success) for record in rounds if record.round >= attack_stop]
    evaluated = [(number, success) for number, success in measured if success is not None]
    lasting = list(takewhile(lambda entry: entry[1] >= threshold, evaluated))
    if not evaluated:
        return None
    return lasting[-1][0] + 1 - attack_stop if lasting else 0


def summarize(rounds: Sequence[RoundRecord], attack_stop: int | None = None) -> dict[str, Any]:
    """Everything a table shows about one run. `attack_stop`: the first round without the attack again."""
    detection = Detection.of(rounds)
    filters = sorted({name for record in rounds for name in record.scores})
    phases = sorted({phase for record in rounds for phase in record.seconds})
    n_lost = sum(record.lost for record in rounds)
    return {
        "final_accuracy": final_accuracy(rounds),
        "tail_accuracy": tail_mean(rounds),
        "attack_success": _last(record.attack_success for record in rounds),
        "source_recall": _last(record.source_recall for record in rounds),
        "clean_target_rate": _last(record.clean_target_rate for record in rounds),
        "success_at_stop": _last(record.attack_success for record in rounds if record.round < (attack_stop or 0)),
        "success_lifespan": success_lifespan(rounds, attack_stop),
        "adversarial_accuracy": _last(record.adversarial_accuracy for record in rounds),
        "batch_statistics_accuracy": _last(record.batch_statistics_accuracy for record in rounds),
        "batch_statistics_tail": tail_mean(rounds, key="batch_statistics_accuracy"),
        "worst_class": _last(min(known) for record in rounds if (known := _known(record.class_recalls))),
        "malicious_rejected": detection.recall,
        "honest_rejected": detection.false_positive_rate,
        "precision": detection.precision,
        "clean_honest_rejected": detection.clean_false_positive_rate,
        **_summarize_metrics(rounds),
        **summarize_clients(rounds),
        "area_under_roc": {name: area_under_roc(rounds, name) for name in filters},
        "confusion": asdict(detection),
        "skipped_rounds": sum(record.skipped is not None for record in rounds),
        **({"lost_rounds": n_lost} if n_lost else {}),
        "seconds": {phase: sum(record.seconds.get(phase, 0.0) for record in rounds) for phase in phases},
        "peak_memory": {phase: max(record.peak_memory.get(phase, 0) for record in rounds) for phase in phases},
    }


def _summarize_metrics(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """What was measured beside accuracy, at the end and in the last tenth of the rounds."""
    names = list(dict.fromkeys(name for record in rounds for name in record.metrics))
    if not names:
        return {}
    flat = {name: [(r.round, r.metrics.get(name)) for r in rounds] for name in names}
    return {
        "final_loss": _last(record.loss for record in rounds),
        "final_metrics": {name: _last(value for _, value in values) for name, values in flat.items()},
        "tail_metrics": {name: mean_of_tail(values) for name, values in flat.items()},
    }


def tail_quality(summary: Mapping[str, Any]) -> float | None:
    """How good a model is, from 0 to 1: its accuracy in the last tenth of the rounds, or R² where targets are values.

    None where neither was measured, or the model is not a number.
    """
    if (accuracy := summary.get("tail_accuracy")) is not None:
        return float(accuracy)
    explained = (summary.get("tail_metrics") or {}).get("r2")
    return None if explained is None else max(0.0, float(explained))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _last(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return known[-1] if known else None


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None
