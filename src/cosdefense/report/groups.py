"""Runs that differ only in their seed, together: what a row of a table and a line of a chart are about."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from ..runs.metrics import Detection, summary_of
from ..runs.records import RoundRecord, RunRecord
from .experiment_settings import distinctions, read_setting


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    attack: str  # "none": there was none; empty: the records do not say
    defense: str
    runs: tuple[RunRecord, ...]
    setting: str = ""  # what tells it from groups of other experiments; empty: there are no others

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        return list(chain.from_iterable(run.rounds for run in self.runs))

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        return [summary_of(run) for run in self.runs]

    @cached_property
    def detection(self) -> Detection:
        """How many updates were accepted and rejected, over all seeds."""
        counts = [summary.get("confusion") or {} for summary in self.summaries]
        return Detection(**{key: sum(c.get(key, 0) for c in counts) for key in Detection.__dataclass_fields__})

    @cached_property
    def filters(self) -> list[str]:
        """Filters that gave any score while the defense was on."""
        defended = [record.scores for record in self.rounds if record.defended]
        return sorted({name for scores in defended for name, values in scores.items() if any_number(values)})

    @cached_property
    def judges(self) -> list[str]:
        """Filters with a known area under ROC; those of packed runs too."""
        areas = [summary.get("area_under_roc") or {} for summary in self.summaries]
        return sorted({name for area in areas for name, value in area.items() if value is not None})

    @cached_property
    def pictures(self) -> list[str]:
        """Filters that recorded points in two dimensions."""
        return sorted({name for record in self.rounds if record.defended for name in record.points})

    @cached_property
    def attack_starts(self) -> list[int]:
        """The rounds in which an attack began; empty where it lasted from the first round on."""
        flags = [record.malicious for run in self.runs if not run.thinned for record in run.rounds]
        known = [malicious for malicious in flags if malicious is not None]
        if not self.rounds or self.attack == "none" or (known and not any(map(any, known))):
            return []
        numbers = [record.round for record in self.rounds]
        starts = {read_setting(run.header, "experiment", "schedule", "attack_start") for run in self.runs}
        return sorted(start for start in starts if isinstance(start, int) and min(numbers) < start <= max(numbers))

    @property
    def circumstances(self) -> str:
        """The experiment, where there are several, and the attack."""
        return ", ".join(filter(None, (self.setting, under(self.attack))))


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs by experiment, attack and defense, all in the order in which they first appear."""
    table: dict[tuple[str, str], dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    distinct = distinctions(runs)
    for run, text in zip(runs, distinct, strict=True):
        table[text, str(run.header.get("attack") or "")][run.label].append(run)
    settings, order = list(dict.fromkeys(distinct)), list(dict.fromkeys(run.label for run in runs))
    return [
        Group(attack, defense, tuple(table[text, attack][defense]), text)
        for text, attack in sorted(table, key=lambda pair: settings.index(pair[0]))
        for defense in sorted(table[text, attack], key=order.index)
    ]


def under(attack: str) -> str:
    """The circumstances in words; empty where the records do not say."""
    return {"": "", "none": "without an attack"}.get(attack, f"under {attack}")


def any_number(values: Sequence[float | None]) -> bool:
    return any(value is not None and math.isfinite(value) for value in values)
