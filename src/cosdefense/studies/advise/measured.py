"""What each defense achieved under each attack, on one scale whatever the metric is.

The scale is what is kept of what training gains: 1 is plain averaging without an attack, 0 is a model that gives the
same answer for every input. It is the same for metrics of which more is better and for those of which less is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ...catalog.options import ConfigError, unknown_name_error
from ...data import Dataset
from ...data.dataset import IGNORED
from ...runs.client_outcomes import estimate_accuracies, list_malicious
from ...runs.experiment import Experiment
from ...runs.metrics import summary_of
from ...runs.prepare import build_world
from ...runs.records import RunRecord
from ...training.batches import to_unit_range
from ...training.metrics import METRICS, Metric, make_metric


@dataclass(frozen=True)
class Client:
    """One client: its name, and a number about it."""

    name: str
    value: float
    measured: str = "accuracy"  # what the number is


@dataclass(frozen=True)
class Outcome:
    """One defense: by attack its metric and the share that it keeps, and what it costs without an attack."""

    label: str
    values: Mapping[str, float]
    kept: Mapping[str, float]
    clean: str = "none"  # the label of no attack
    honest_rejected: float | None = None  # the share of updates; None: nobody is ever rejected
    most_rejected: Client | None = None  # the share of its rounds
    worst_served: Client | None = None  # its accuracy; its loss where targets are values
    backdoors: Mapping[str, float] = field(default_factory=dict)  # by attack: how often the trigger works

    @property
    def attacked(self) -> dict[str, float]:
        return {attack: kept for attack, kept in self.kept.items() if attack != self.clean}

    @property
    def worst(self) -> tuple[str, float]:
        """The attack that leaves least, and what it leaves."""
        return min(self.attacked.items(), key=lambda pair: pair[1])


def choose_metric(experiment: Experiment, dataset: Dataset, name: str | None) -> Metric:
    """The metric of that name; by default the first of the file's, or else accuracy, or R² of values."""
    metrics = {metric.name: metric for metric in experiment.training.list_metrics(has_classes=bool(dataset.classes))}
    if dataset.classes:
        metrics.setdefault("accuracy", make_metric("accuracy", METRICS["accuracy"]))
    if name is None:
        return next(iter(metrics.values()))
    if name not in metrics:
        raise unknown_name_error("metric", name, metrics)
    return metrics[name]


def measure_constant(experiment: Experiment, dataset: Dataset, metric: Metric) -> float:
    """The metric of the best answer that ignores the input: class frequencies, or the mean of values."""
    cell = next(experiment.cells())
    world = build_world(cell, dataset, torch.device("cpu"))
    shape = world.task.logits(world.task.initial(), to_unit_range(dataset.train_inputs[:1].cpu())).shape
    targets = dataset.test_targets.cpu()
    outputs = _find_constant(dataset, shape).expand(len(targets), *shape[1:])
    value = metric.measure(outputs, targets)
    if not math.isfinite(value):
        raise ConfigError(f"metric {metric.name} of a constant answer must be a number, got {value}: choose another")
    return value


def _find_constant(dataset: Dataset, shape: Sequence[int]) -> Tensor:
    """Outputs of shape (1, …) that are the same for all samples."""
    targets = dataset.train_targets.cpu()
    if not dataset.classes:
        return targets.float().mean(dim=0, keepdim=True).reshape(1, *shape[1:])
    counts = torch.bincount(targets[targets != IGNORED].flatten(), minlength=dataset.n_classes).float()
    logits = (counts / counts.sum()).clamp(min=1e-6).log()
    if len(shape) == 1 or shape[1] == 1:  # one output: the logit of the second class
        return (logits[1] - logits[0]).expand(1, *shape[1:])
    return logits.reshape(1, -1, *[1] * (len(shape) - 2)).expand(1, *shape[1:])


def collect_outcomes(runs: Sequence[RunRecord], metric: Metric, constant: float) -> list[Outcome]:
    """Every defense that met all attacks that the first one, plain averaging, met; the mean over seeds."""
    cells: dict[str, dict[str, list[RunRecord]]] = {}
    for run in runs:
        if run.summary is not None:
            cells.setdefault(run.header["defense"], {}).setdefault(run.header["attack"], []).append(run)
    if not cells:
        return []
    reference = next(iter(cells.values()))
    clean = next(iter(reference))
    n_runs = {attack: len(group) for attack, group in reference.items()}
    complete = {
        defense: by_attack
        for defense, by_attack in cells.items()
        if all(len(by_attack.get(attack, ())) == n for attack, n in n_runs.items())
    }
    best = fmean(read_value(run, metric, constant) for run in reference[clean])
    return [_make_outcome(label, by_attack, clean, metric, constant, best) for label, by_attack in complete.items()]


def _make_outcome(
    label: str, by_attack: Mapping[str, Sequence[RunRecord]], clean: str, metric: Metric, constant: float, best: float
) -> Outcome:
    values = {a: fmean(read_value(run, metric, constant) for run in group) for a, group in by_attack.items()}
    backdoors = {a: fmean(map(_read_backdoor, group)) for a, group in by_attack.items()}
    gain = best - constant
    kept = {a: (value - constant) / gain if gain else math.nan for a, value in values.items()}
    kept = {a: max(0.0, min(share, 1 - backdoors[a])) for a, share in kept.items()}
    summaries = [summary_of(run) for run in by_attack[clean]]
    rejected = [s["honest_rejected"] for s in summaries if s.get("honest_rejected") is not None]
    most = [_read_client(run, "most_rejected_client", "rejected") for run in by_attack[clean]]
    return Outcome(
        label,
        values,
        kept,
        clean,
        fmean(rejected) if rejected else None,
        max((client for client in most if client), key=lambda client: client.value, default=None),
        min(filter(None, map(_find_worst_served, by_attack[clean])), key=_rank_service, default=None),
        {a: rate for a, rate in backdoors.items() if rate > 0},
    )


def read_value(run: RunRecord, metric: Metric, constant: float) -> float:
    """The metric in the last tenth of the rounds. A model that is not a number is as good as a constant answer."""
    summary = summary_of(run)
    measured = summary.get("tail_accuracy") if metric.name == "accuracy" else None
    if measured is None:
        measured = (summary.get("tail_metrics") or {}).get(metric.name)
    return constant if measured is None or not math.isfinite(measured) else float(measured)


def _read_backdoor(run: RunRecord) -> float:
    """How much more often samples with the trigger get the attack's class than without; 0 where there is none."""
    summary = summary_of(run)
    success, unchanged = summary.get("attack_success"), summary.get("clean_target_rate")
    return 0.0 if success is None or unchanged is None else max(0.0, success - unchanged)


def _read_client(run: RunRecord, key: str, number: str) -> Client | None:
    entry: Mapping[str, Any] | None = summary_of(run).get(key)
    if entry is None or entry.get(number) is None:
        return None
    return Client(name_client(run, entry["client"]), float(entry[number]), number)


def _rank_service(client: Client) -> float:
    return -client.value if client.measured == "loss" else client.value


def _find_worst_served(run: RunRecord) -> Client | None:
    """From test samples of each client; or else from its classes."""
    for number in ("accuracy", "loss"):
        if (known := _read_client(run, "worst_client", number)) is not None:
            return known
    malicious = list_malicious(run.rounds)
    estimates = [(value, client) for client, value in enumerate(estimate_accuracies(run)) if value is not None]
    honest = [(value, client) for value, client in estimates if client not in malicious]
    return Client(name_client(run, min(honest)[1]), min(honest)[0]) if honest else None


def name_client(run: RunRecord, client: int) -> str:
    names = run.header.get("clients") or ()
    return str(names[client]) if client < len(names) else f"client {client}"
