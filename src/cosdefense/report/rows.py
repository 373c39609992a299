"""The numbers behind the figures: pure functions from runs to rows, one dictionary per mark on the paper."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from ..metrics import Detection, summarize
from ..records import RoundRecord, RunRecord

Row = dict[str, Any]

MAX_POINTS = 250  # per curve: about one every three pixels
MAX_BINS = 50  # of rounds, where scores are drawn
MAX_DOTS = 400  # of a picture in two dimensions
MAX_CLIENTS = 200  # per chart: more bars than that are thinner than a pixel on a phone


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    attack: str  # "none": there was none; empty: the records do not say
    defense: str
    runs: tuple[RunRecord, ...]

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        return list(chain.from_iterable(run.rounds for run in self.runs))

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        return [summarize(run.rounds) for run in self.runs]

    @cached_property
    def filters(self) -> list[str]:
        """Filters that gave a score to anybody while the defense was on."""
        defended = [record.scores for record in self.rounds if record.defended]
        return sorted({name for scores in defended for name, found in scores.items() if any_number(found)})

    @cached_property
    def pictures(self) -> list[str]:
        """Filters that drew one."""
        return sorted({name for record in self.rounds if record.defended for name in record.points})

    @cached_property
    def attack_starts(self) -> list[int]:
        """The rounds in which an attack began after a while of peace."""
        known = [record.malicious for record in self.rounds if record.malicious is not None]
        if not self.rounds or (known and not any(map(any, known))):
            return []
        numbers = [record.round for record in self.rounds]
        found = {setting(run.header, "experiment", "schedule", "attack_start") for run in self.runs}
        return sorted(start for start in found if isinstance(start, int) and min(numbers) < start <= max(numbers))


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs by attack and defense, both in the order in which they first appear."""
    table: dict[str, dict[str, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        table[str(run.header.get("attack") or "")][run.label].append(run)
    order = list(dict.fromkeys(run.label for run in runs))
    return [
        Group(attack, defense, tuple(defenses[defense]))
        for attack, defenses in table.items()
        for defense in sorted(defenses, key=order.index)
    ]


def under(attack: str) -> str:
    """The circumstances in words; none where nobody knows of an attack."""
    return {"": "", "none": "without an attack"}.get(attack, f"under {attack}")


def setting(header: Mapping[str, Any], *path: str) -> Any:
    """The value at a path of nested keys; None where a key is missing."""
    value: Any = header
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def any_number(values: Sequence[float | None]) -> bool:
    return any(value is not None and math.isfinite(value) for value in values)


def accuracy_rows(group: Group) -> list[Row]:
    """Mean, lowest and highest accuracy over the seeds, per evaluated round."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for record in group.rounds:
        if record.accuracy is not None and math.isfinite(record.accuracy):
            by_round[record.round].append(record.accuracy)
    rounds = sorted(by_round)
    step = math.ceil(len(rounds) / MAX_POINTS) or 1
    return [
        {
            "defense": group.defense,
            "round": number,
            "mean": round(fmean(by_round[number]), 5),
            "low": round(min(by_round[number]), 5),
            "high": round(max(by_round[number]), 5),
            "seeds": len(by_round[number]),
        }
        for number in reversed(rounds[::-1][::step])  # counted from the end: the last round is always drawn
    ]


def score_rows(group: Group, filter_name: str) -> list[Row]:
    """Mean and 10–90 % band of a filter's scores, for honest and malicious clients, per bin of rounds."""
    found = list(_scores(group.rounds, filter_name))
    if not found:
        return []
    first = min(number for number, _, _ in found)
    width = math.ceil((max(number for number, _, _ in found) - first + 1) / MAX_BINS)
    bins: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for number, who, score in found:
        bins[who, (number - first) // width].append((number, score))
    rows = []
    for (who, _), members in sorted(bins.items()):
        scores = [score for _, score in members]
        low, high = np.quantile(scores, [0.1, 0.9])
        row = {"mean": fmean(scores), "low": float(low), "high": float(high)}
        row = {key: float(f"{value:.5g}") for key, value in row.items()}
        # the bin's own mean round, so that no attacker appears before the attack
        rows.append(
            {"who": who, "round": round(fmean(number for number, _ in members), 2), **row, "count": len(scores)}
        )
    return rows


def _scores(rounds: Sequence[RoundRecord], filter_name: str) -> Iterator[tuple[int, str, float]]:
    for record in rounds:
        if not record.defended:
            continue
        for who, score in zip(truths(record), record.scores.get(filter_name, ()), strict=False):
            if score is not None and math.isfinite(score):
                yield record.round, who, score


def truths(record: RoundRecord) -> list[str]:
    """What each client of a round was; "client" where nobody knows."""
    if record.malicious is None:
        return ["client"] * len(record.clients)
    return ["malicious" if liar else "honest" for liar in record.malicious]


def rejection_rows(group: Group) -> list[Row]:
    """How often each client was rejected when a filter judged it.

    Liars are counted in the rounds in which they lied, honest clients in all theirs.
    """
    fates: dict[tuple[str, int], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for run, world in zip(group.runs, _worlds(group), strict=True):
        for record in run.rounds:
            for index, who in enumerate(truths(record)):
                if record.defended and any(scores[index] is not None for scores in record.scores.values()):
                    fates[world, record.clients[index]][who].append(record.weights[index] == 0)
    rows = []
    for (world, client), by_truth in fates.items():
        who = max(by_truth)  # "malicious" > "honest" > "client": once a liar, a liar
        rejected, rounds = sum(by_truth[who]), len(by_truth[who])
        row = {"client": f"{client}{world}", "who": who, "rejected": rejected, "rounds": rounds}
        rows.append(row | {"share": round(rejected / rounds, 5)})
    anybody = any(row["rejected"] for row in rows)
    return sorted(rows, key=lambda row: (-row["share"], row["who"], row["client"])) if anybody else []


def _worlds(group: Group) -> list[str]:
    """What tells apart the clients of several runs: with another seed, client 7 is somebody else."""
    seeds = [str(run.header.get("seed")) for run in group.runs]
    if len(seeds) == 1:
        return [""]
    distinct = len(set(seeds)) == len(seeds)
    return [f", seed {seed}" if distinct else f", run {number}" for number, seed in enumerate(seeds, 1)]


def confusion_rows(group: Group) -> list[Row]:
    """Who was what and what became of them; nothing where nobody knows, or where nobody was judged."""
    detection = Detection.of(group.rounds)
    rows = []
    for truth in ("malicious", "honest"):
        counts = {fate: getattr(detection, f"{truth}_{fate}") for fate in ("rejected", "accepted")}
        total = sum(counts.values())
        shares = {fate: round(count / total, 5) for fate, count in counts.items() if total}
        rows += [{"truth": truth, "fate": fate, "count": counts[fate], "share": shares[fate]} for fate in shares]
    return rows


def split_rows(runs: Sequence[RunRecord]) -> tuple[list[Row], str]:
    """Samples per client and class of the first run that knows them, and which run that was."""
    for run in runs:
        split = run.header.get("split")
        if split:
            names = run.header.get("classes") or ()
            names = names if len(names) == len(split[0]) else range(len(split[0]))
            rows = [
                {"client": client, "class": str(name), "samples": samples}
                for client, counts in enumerate(split[:MAX_CLIENTS])
                for name, samples in zip(names, counts, strict=True)
            ]
            shown = f"{len(split)}" if len(split) <= MAX_CLIENTS else f"{MAX_CLIENTS} of {len(split)}"
            return rows, f"{shown} clients, seed {run.header.get('seed', 'unknown')}"
    return [], ""


def grid_rows(groups: Sequence[Group], key: str) -> list[Row]:
    """One number of the summary per defense and attack, the mean over seeds; nothing with a single attack."""
    if len({group.attack for group in groups}) < 2:
        return []
    rows = []
    for group in groups:
        found = [summary[key] for summary in group.summaries if summary[key] is not None]
        if found:
            rows.append({"attack": group.attack, "defense": group.defense, "share": round(fmean(found), 5)})
    return rows


def point_rows(group: Group, filter_name: str) -> list[Row]:
    """The latest updates as a filter that draws a picture saw them."""
    rows = []
    for record in group.rounds:
        for index, (who, place) in enumerate(zip(truths(record), record.points.get(filter_name, ()), strict=False)):
            if place is not None and any_number(place):
                fate = "rejected" if record.weights[index] == 0 else "accepted"
                x, y = (float(f"{value:.5g}") for value in place)
                row = {"x": x, "y": y, "who": who, "fate": fate, "round": record.round}
                rows.append(row | {"client": str(record.clients[index])})
    return rows[-MAX_DOTS:]
