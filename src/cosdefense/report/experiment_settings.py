"""The settings of runs, and what distinguishes one experiment from another."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..runs.records import RunRecord

VARIED = ("seeds", "attacks", "defenses")  # a run's own experiment holds one of each


def read_setting(header: Mapping[str, Any], *path: str) -> Any:
    """The value at a path of nested keys; None where a key is missing."""
    value: Any = header
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Nested tables as pairs of a dotted path and a plain value; an item of a list becomes one line."""
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in flat(item, f"{path}.{key}" if path else str(key))]
    if not isinstance(value, list | tuple):
        return [(path, value)]
    if not any(isinstance(item, Mapping | list | tuple) for item in value):
        return [(path, ", ".join(map(str, value)) or "none")]
    lines = [", ".join(f"{key} = {inner}" if key else f"{inner}" for key, inner in flat(item)) for item in value]
    return [(f"{path}.{number}".lstrip("."), line) for number, line in enumerate(lines, 1)]


def experiments(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """The settings of the runs; those that differ only in attack, defense and seed are merged."""
    merged_by_key: dict[str, dict[str, Any]] = {}
    for run in runs:
        experiment = run.header.get("experiment")
        if not isinstance(experiment, Mapping) or not experiment:
            continue
        common = _common(experiment)
        merged = merged_by_key.setdefault(json.dumps(common, default=str, sort_keys=True), common)
        for key in VARIED:
            if key in experiment:
                known = merged.setdefault(key, [])
                known += [value for value in experiment[key] if value not in known]
    return list(merged_by_key.values())


def distinctions(runs: Sequence[RunRecord]) -> list[str]:
    """What tells each run from those of other experiments, in words; empty where all are of the same one.

    That is the experiment's name where there are several, and whatever is not the same in all runs of
    that name: runs that differ in more than their seed are no samples of the same thing.
    """
    several = len({run.experiment for run in runs}) > 1
    settings = [(run.experiment, dict(flat(_common(run.header.get("experiment") or {})))) for run in runs]
    parts = [((run.experiment, run.header.get("attack"), run.label), dict(flat(_parts(run)))) for run in runs]
    texts = []
    for run, own, own_parts in zip(runs, _list_distinct(settings), _list_distinct(parts), strict=True):
        name = [run.experiment or "unnamed"] if several else []
        texts.append(", ".join([*name, *own, *own_parts]))
    return texts


def _list_distinct(members: Sequence[tuple[Hashable, dict[str, Any]]]) -> list[list[str]]:
    """For each member of a group those of its facts that are not the same in all of the group."""
    values: dict[Hashable, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    sizes: dict[tuple[Hashable, str], int] = defaultdict(int)
    groups: dict[Hashable, int] = defaultdict(int)
    for group, facts in members:
        groups[group] += 1
        for key, value in facts.items():
            values[group][key].add(str(value))
            sizes[group, key] += 1
    return [
        [
            f"{key} = {value}"
            for key, value in facts.items()
            if len(values[group][key]) > 1 or sizes[group, key] < groups[group]
        ]
        for group, facts in members
    ]


def _common(experiment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in experiment.items() if key not in VARIED}


def _parts(run: RunRecord) -> dict[str, Any]:
    """The run's own attack and defense, as its header describes them."""
    lists = {part: read_setting(run.header, "experiment", f"{part}s") for part in ("attack", "defense")}
    return {part: entries[0] for part, entries in lists.items() if isinstance(entries, list | tuple) and entries}
