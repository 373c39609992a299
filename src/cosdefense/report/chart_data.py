"""The numbers behind the figures: pure functions from runs to rows, one dictionary per mark on the paper."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ..runs.records import RoundRecord
from .groups import Group, any_number

Row = dict[str, Any]

MAX_POINTS = 250  # per curve: about one every three pixels
MAX_BINS = 50  # of rounds, where scores are drawn
MAX_DOTS = 400  # of a picture in two dimensions
MAX_CLIENTS = 200  # per chart: more bars than that are thinner than a pixel on a phone


def accuracy_rows(group: Group, key: str = "accuracy") -> list[Row]:
    """Mean, lowest and highest accuracy over the seeds, per evaluated round."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for record in group.rounds:
        accuracy: float | None = getattr(record, key)
        if accuracy is not None and math.isfinite(accuracy):
            by_round[record.round].append(accuracy)
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
    entries = list(_scores(group.rounds, filter_name))
    if not entries:
        return []
    first = min(number for number, _, _ in entries)
    width = math.ceil((max(number for number, _, _ in entries) - first + 1) / MAX_BINS)
    bins: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for number, who, score in entries:
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
    """For each client of a round "honest" or "malicious"; "client" where that is unknown."""
    if record.malicious is None:
        return ["client"] * len(record.clients)
    return ["malicious" if malicious else "honest" for malicious in record.malicious]


def rejection_rows(group: Group) -> list[Row]:
    """How often each client was rejected when a filter judged it.

    Malicious clients are counted in the rounds in which they attacked, honest clients in all rounds.
    """
    fates: dict[tuple[str, int], dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for run, world in zip(group.runs, _worlds(group), strict=True):
        for record in run.rounds:
            for index, who in enumerate(truths(record)):
                if record.defended and any(scores[index] is not None for scores in record.scores.values()):
                    fates[world, record.clients[index]][who].append(record.weights[index] == 0)
    rows = []
    for (world, client), by_truth in fates.items():
        who = max(by_truth)  # "malicious" > "honest" > "client": malicious in any round counts as malicious
        rejected, rounds = sum(by_truth[who]), len(by_truth[who])
        row = {"client": f"{client}{world}", "who": who, "rejected": rejected, "rounds": rounds}
        rows.append(row | {"share": round(rejected / rounds, 5)})
    anybody = any(row["rejected"] for row in rows)
    return sorted(rows, key=lambda row: (-row["share"], row["who"], row["client"])) if anybody else []


def _worlds(group: Group) -> list[str]:
    """What tells apart the clients of several runs: with another seed, client 7 is another client."""
    seeds = [str(run.header.get("seed")) for run in group.runs]
    if len(seeds) == 1:
        return [""]
    distinct = len(set(seeds)) == len(seeds)
    return [f", seed {seed}" if distinct else f", run {number}" for number, seed in enumerate(seeds, 1)]


def confusion_rows(group: Group) -> list[Row]:
    """Rejected and accepted updates of malicious and honest clients; empty where that is unknown."""
    rows = []
    for truth in ("malicious", "honest"):
        counts = {fate: getattr(group.detection, f"{truth}_{fate}") for fate in ("rejected", "accepted")}
        total = sum(counts.values())
        shares = {fate: round(count / total, 5) for fate, count in counts.items() if total}
        rows += [{"truth": truth, "fate": fate, "count": counts[fate], "share": shares[fate]} for fate in shares]
    return rows


def split_rows(groups: Sequence[Group]) -> tuple[list[Row], str]:
    """Samples per client and class of the first run that knows them, and which run that was."""
    for setting, run in ((group.setting, run) for group in groups for run in group.runs):
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
            where = f"{setting}, " if setting else ""
            return rows, f"{where}{shown} clients, seed {run.header.get('seed', 'unknown')}"
    return [], ""


def grid_rows(groups: Sequence[Group], key: str) -> list[Row]:
    """One number of the summary per defense and attack, the mean over seeds; nothing with a single attack."""
    if len({group.attack for group in groups}) < 2:
        return []
    rows = []
    for group in groups:
        values = [value for summary in group.summaries if (value := summary.get(key)) is not None]
        if values:
            rows.append({"attack": group.attack, "defense": group.defense, "share": round(fmean(values), 5)})
    return rows


def point_rows(group: Group, filter_name: str) -> list[Row]:
    """The latest updates as points in the two dimensions of a filter."""
    rows = []
    for record in group.rounds:
        for index, (who, point) in enumerate(zip(truths(record), record.points.get(filter_name, ()), strict=False)):
            if point is not None and any_number(point):
                fate = "rejected" if record.weights[index] == 0 else "accepted"
                x, y = (float(f"{value:.5g}") for value in point)
                row = {"x": x, "y": y, "who": who, "fate": fate, "round": record.round}
                rows.append(row | {"client": str(record.clients[index])})
    return rows[-MAX_DOTS:]
