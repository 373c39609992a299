"""Grids of a few defenses and attacks as tables for documents: one number a pair, over its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..runs.metrics import tail_quality
from .groups import Group
from .results import spread
from .table import NOTHING, Table

ACCURACY = "tail_accuracy"
QUESTIONS = {  # key of the summary → title, what it is
    ACCURACY: ("Accuracy", "Accuracy on held-out data, the mean of the evaluations in the last tenth of the rounds."),
    "worst_class": ("Worst class", "The lowest share of a class that got its label, at the end."),
    "malicious_rejected": ("Malicious rejected", "The share of malicious updates that filters rejected."),
    "honest_rejected": ("Honest rejected", "The share of honest updates that filters rejected."),
}


def make_pair_tables(groups: Sequence[Group]) -> dict[str, Table]:
    """Per experiment and question a table, defenses down and attacks across; nothing where there is one attack."""
    tables = {}
    for number, setting in enumerate(dict.fromkeys(group.setting for group in groups)):
        own = [group for group in groups if group.setting == setting]
        if len({group.attack for group in own}) < 2:
            continue
        for key in QUESTIONS:
            table = _make_table(key, setting, own)
            if any(cell != NOTHING for row in table.rows for cell in row[1:]):
                tables[f"{key}-{number}"] = table
    return tables


def _make_table(key: str, setting: str, groups: Sequence[Group]) -> Table:
    attacks, defenses = (list(dict.fromkeys(getattr(g, name) for g in groups)) for name in ("attack", "defense"))
    cells = {(group.defense, group.attack): spread(_read_values(key, group)) for group in groups}
    rows = tuple((name, *(cells.get((name, attack), NOTHING) for attack in attacks)) for name in defenses)
    title, note = QUESTIONS[key]
    several = any(len(group.runs) > 1 for group in groups)
    note += " Mean ± standard deviation over seeds." if several else ""
    return Table(key, f"{title}, {setting}" if setting else title, note, ("Defense", *attacks), rows)


def _read_values(key: str, group: Group) -> list[float | None]:
    """Of all seeds. A finished run without an accuracy has a model that is not a number, and counts as 0."""
    if key != ACCURACY:
        return [summary.get(key) for summary in group.summaries]
    tails = zip(group.runs, map(tail_quality, group.summaries), strict=True)
    return [0.0 if run.summary is not None and not (tail and math.isfinite(tail)) else tail for run, tail in tails]
