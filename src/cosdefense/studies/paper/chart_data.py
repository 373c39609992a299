"""The numbers behind the paper's figures 1 and 2, and behind bars."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from ...report.chart_data import MAX_POINTS, Row
from ...report.groups import Group
from ...runs.records import RoundRecord, RunRecord
from .drift import DriftRun

TRACED = "TracedCosDefense"  # the filter that records raw cosines
WINDOW = 40  # rounds of the moving average, as in the paper


def layer_rows(runs: Sequence[DriftRun]) -> list[Row]:
    """Figure 1: by layer and iteration, how similar the clients' weights are, and how similar their changes."""
    similarities: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for measurement in (measurement for run in runs for measurement in run.measurements):
        for what, by_tensor in (("weights", measurement.weights), ("changes", measurement.changes)):
            for tensor, values in by_tensor.items():
                similarities[what, tensor, measurement.iteration] += _numbers(values)
    labels = layer_labels(dict.fromkeys(tensor for _, tensor, _ in similarities))
    shown = set(_thin(sorted({iteration for *_, iteration in similarities})))
    return [
        {"of": what, "layer": labels[tensor], "tensor": tensor, "iteration": iteration, **_band(values)}
        for (what, tensor, iteration), values in similarities.items()
        if values and iteration in shown
    ]


def layer_labels(tensors: Mapping[str, None]) -> dict[str, str]:
    """The layers numbered from input to output."""
    last = len(tensors) - 1
    return {tensor: "last layer" if index == last else f"layer {index + 1}" for index, tensor in enumerate(tensors)}


def trace_rows(group: Group, label: str) -> list[Row]:
    """Figure 2: by round, the mean score of all received updates; averaged over the last rounds, then over seeds."""
    means: dict[int, list[float]] = defaultdict(list)
    for run in group.runs:
        trace = mean_scores(run)
        for index, (number, _) in enumerate(trace):
            window = [score for _, score in trace[max(0, index + 1 - WINDOW) : index + 1]]
            means[number].append(fmean(window))
    numbers = _thin(sorted(means))
    return [{"case": label, "round": number, **_band(means[number]), "seeds": len(means[number])} for number in numbers]


def mean_scores(run: RunRecord) -> list[tuple[int, float]]:
    """By round, the mean score of the updates that the filter received."""
    judged = [(record.round, _scores(record)) for record in run.rounds]
    return [(number, fmean(scores)) for number, scores in judged if scores]


def _scores(record: RoundRecord) -> list[float]:
    """Those of the traced filter; of the only one where that has another name."""
    known = [record.scores[name] for name in (TRACED, *record.scores) if name in record.scores]
    return _numbers(known[0]) if known else []


def share_rows(values: Sequence[tuple[str, Group]], key: str = "final_accuracy") -> list[Row]:
    """Bars: one number of the summaries by a setting, its range over seeds, and every seed on its own."""
    rows = []
    for setting, group in values:
        labels = {"setting": setting, "defense": group.defense}
        ends = [(run.header.get("seed"), summary.get(key)) for run, summary in _pairs(group)]
        known = [end for _, end in ends if end is not None]
        if not known:
            continue
        band = {"low": round(min(known), 5), "high": round(max(known), 5), "seeds": len(known)}
        band["unfinished"] = sum(run.summary is None for run in group.runs)
        rows.append(labels | {"kind": "mean", "share": round(fmean(known), 5)} | band)
        dots = [(seed, end) for seed, end in ends if end is not None and len(known) > 1]
        rows += [labels | {"kind": "seed", "share": round(end, 5), "seed": str(seed)} for seed, end in dots]
    return rows


def _thin(numbers: Sequence[int]) -> Sequence[int]:
    """At most as many as a curve has points; counted from the end, so that the last is always drawn."""
    return numbers[::-1][:: math.ceil(len(numbers) / MAX_POINTS) or 1][::-1]


def _pairs(group: Group) -> list[tuple[RunRecord, Row]]:
    return list(zip(group.runs, group.summaries, strict=True))


def _band(values: Sequence[float]) -> Row:
    return {key: round(of(values), 6) for key, of in (("mean", fmean), ("low", min), ("high", max))}


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
