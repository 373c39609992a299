"""The results in words, as a table and as files to download."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import StringIO
from statistics import fmean, stdev
from typing import Any

from ..runs.records import RunRecord
from .experiment_settings import flat, read_setting
from .groups import Group, under
from .table import NOTHING

Summary = Mapping[str, Any]
MAX_DESCRIBED = 4  # attacks that are described one by one
EXCLUDED = 0.9  # of its rounds: a client that is rejected so often hardly takes part


def make_table(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the results; columns without any number are left out."""
    columns = [*COLUMNS[:N_FIRST], *_metric_columns(groups), *COLUMNS[N_FIRST:]]
    rows = [
        [group.defense, group.setting or NOTHING, group.attack or NOTHING, seeds(group)]
        + [cell(group) for _, cell in columns]
        for group in groups
    ]
    headings = ["Defense", "Setting", "Attack", "Seeds", *(heading for heading, _ in columns)]
    kept = [index for index in range(len(headings)) if index == 0 or any(row[index] != NOTHING for row in rows)]
    return [headings[index] for index in kept], [[row[index] for index in kept] for row in rows]


def seeds(group: Group) -> str:
    numbers = [run.header["seed"] for run in group.runs if "seed" in run.header]
    if len(numbers) > 2 and numbers == list(range(len(numbers))):
        return f"0–{len(numbers) - 1}"
    return ", ".join(map(str, numbers)) or NOTHING


def spread(values: Iterable[float | None], form: str = ".1%") -> str:
    """The mean of what was measured, with the standard deviation where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    mean = f"{fmean(known):{form}}"
    return mean if len(known) == 1 else f"{mean.rstrip('%')} ± {stdev(known):{form}}"


def _spread(read: Callable[[Summary], float | None], form: str) -> Callable[[Group], str]:
    """A cell that shows a number of the summaries over the seeds."""
    return lambda group: spread(map(read, group.summaries), form)


def _number(key: str, form: str = ".1%") -> Callable[[Group], str]:
    return _spread(lambda summary: summary.get(key), form)


def area(group: Group) -> str:
    """The area under the ROC curve; of each filter by name where there are several."""
    known = {name: _spread(partial(_area_of, name), ".3f")(group) for name in group.judges}
    if len(known) < 2:
        return next(iter(known.values()), NOTHING)
    return ", ".join(f"{name} {text}" for name, text in known.items())


def _area_of(filter_name: str, summary: Summary) -> float | None:
    areas: Mapping[str, float | None] = summary.get("area_under_roc") or {}
    return areas.get(filter_name)


COLUMNS: tuple[tuple[str, Callable[[Group], str]], ...] = (
    ("Final accuracy", _number("final_accuracy")),
    ("Last tenth", _number("tail_accuracy")),
    ("Worst class", _number("worst_class")),
    ("Attack success", _number("attack_success")),
    ("Source recall", _number("source_recall")),
    ("Target rate on clean images", _number("clean_target_rate")),
    ("Success at the stop", _number("success_at_stop")),
    ("Rounds that success lasts", _number("success_lifespan", ".3g")),
    ("Adversarial accuracy", _number("adversarial_accuracy")),
    ("Accuracy with batch statistics", _number("batch_statistics_accuracy")),
    ("Malicious rejected", _number("malicious_rejected")),
    ("Honest rejected", _number("honest_rejected")),
    ("Precision", _number("precision")),
    ("Clean-round false positives", _number("clean_honest_rejected")),
    ("Most-rejected honest client", _number("most_rejected_honest")),
    ("Worst-served client", _number("worst_client_accuracy")),
    ("AUC", area),
    ("Rounds skipped", _number("skipped_rounds", ".3g")),
    ("Seconds", _spread(lambda summary: sum((summary.get("seconds") or {}).values()) or None, ",.1f")),
)

N_FIRST = 3  # columns of accuracy, which other metrics follow


def _metric_columns(groups: Sequence[Group]) -> list[tuple[str, Callable[[Group], str]]]:
    """One column for every other metric at the end, by its name in the experiment; and the loss."""
    names = dict.fromkeys(name for group in groups for summary in group.summaries for name in _metrics_of(summary))
    columns = [("Final loss", _number("final_loss", ".4g"))] if names else []
    return [*columns, *((name, _spread(partial(_read_metric, name), ".4g")) for name in names)]


def _metrics_of(summary: Summary) -> Mapping[str, float | None]:
    return summary.get("final_metrics") or {}


def _read_metric(name: str, summary: Summary) -> float | None:
    return _metrics_of(summary).get(name)


NOTES = {
    "Final accuracy": "Accuracy is measured on held-out data.",
    "Last tenth": "Last tenth: its mean over the last tenth of the rounds.",
    "Worst class": "Worst class: the lowest share of a class that got its label at the end.",
    "Attack success": "Attack success: the share of the images aimed at that got the label the attackers wanted.",
    "Source recall": "Source recall: the share of those images, unchanged, that still got their true label.",
    "Target rate on clean images": "Target rate on clean images: the share of those images, unchanged, that got the "
    "label the attackers wanted.",
    "Success at the stop": "Success at the stop: attack success when the attackers left.",
    "Rounds that success lasts": "Rounds that success lasts: how long attack success stayed at 50 % or above after "
    "the attackers left.",
    "Adversarial accuracy": "Adversarial accuracy: on test images that PGD has moved to where the model errs.",
    "Accuracy with batch statistics": "Accuracy with batch statistics: BatchNorm uses those of each test batch.",
    "Precision": "Precision: the share of rejected updates that were malicious.",
    "Clean-round false positives": "Clean-round false positives: the share of honest updates rejected in rounds "
    "without any attacker.",
    "Most-rejected honest client": "Most-rejected honest client: the one that was rejected most often, and the share "
    "of its rounds in which it was.",
    "Worst-served client": "Worst-served client: the lowest accuracy of the final model on one honest client's own "
    "test samples.",
    "AUC": "AUC: how often a malicious client scores above an honest one of the same round.",
}


def explain_columns(groups: Sequence[Group]) -> str:
    """What the columns mean."""
    headings, _ = make_table(groups)
    several = any(len(group.runs) > 1 for group in groups)
    known = [text for heading, text in NOTES.items() if heading in headings]
    return " ".join(known + ["Mean ± standard deviation over seeds."] * several)


def describe_results(groups: Sequence[Group]) -> str:
    """The results in one paragraph."""
    worlds = list(dict.fromkeys(group.circumstances for group in groups))
    if len(worlds) > MAX_DESCRIBED:
        return f"{scope(groups)} {_describe_worst_cases(groups)}{_describe_excluded(groups)}"
    outcomes = [_describe_outcome([g for g in groups if g.circumstances == world]) for world in worlds]
    return " ".join([scope(groups), *outcomes]) + _describe_excluded(groups)


def _describe_worst_cases(groups: Sequence[Group]) -> str:
    """Many attacks in two sentences: who lost least where it lost most, and who lost most."""
    worst: dict[str, tuple[float, str]] = {}
    for group in groups:
        end = _mean(group, "final_accuracy")
        if end is not None and (group.defense not in worst or end < worst[group.defense][0]):
            worst[group.defense] = end, group.circumstances
    if not worst:
        return "No round was evaluated."
    (best, (high, where)), (last, (low, there)) = max(worst.items(), key=_second), min(worst.items(), key=_second)
    text = f"In its worst case {best} ended at {high:.1%} accuracy ({where}), higher than any other defense in its own."
    return text if best == last else f"{text} Lowest was {last}, at {low:.1%} ({there})."


def _second(item: tuple[str, tuple[float, str]]) -> tuple[float, str]:
    return item[1]


def scope(groups: Sequence[Group]) -> str:
    """How much was run, and whether all of it is there."""
    n_runs = sum(len(group.runs) for group in groups)
    n_rounds = max(run.n_rounds for group in groups for run in group.runs)
    unfinished = sum(run.summary is None for group in groups for run in group.runs)
    defenses = len({group.defense for group in groups})
    text = f"{count(n_runs, 'run')} of {count(defenses, 'defense')}, up to {count(n_rounds, 'round')} each."
    lost = sum(summary.get("lost_rounds", 0) for group in groups for summary in group.summaries)
    text += f" {count(unfinished, 'run')} not finished: the numbers so far." if unfinished else ""
    return text + (f" The records of {count(lost, 'round')} were damaged and are lost." if lost else "")


def _describe_outcome(groups: Sequence[Group]) -> str:
    """How it ended under one attack: who did best, whom that one rejected, who did worst."""
    starts = sorted({start for group in groups for start in group.attack_starts})
    places = [f"in {groups[0].setting}" if groups[0].setting else "", under(groups[0].attack)]
    where = ", ".join(filter(None, places)) + (f" (from round {starts[0]} on)" if starts else "")
    lead = f"{where[0].upper()}{where[1:]}, " if where else ""
    ends = [(end, group) for group in groups if (end := _mean(group, "final_accuracy")) is not None]
    if not ends and (values := _describe_values(groups)):
        return f"{lead}{values}"
    if not ends:
        return f"{lead}no round was evaluated." if lead else "No round was evaluated."
    (best, winner), (worst, loser) = max(ends, key=_first), min(ends, key=_first)
    if len(ends) == 1:
        return f"{lead}{winner.defense} ended at {best:.1%} accuracy.{_describe_rejections(winner)}"
    if best - worst < 0.005:
        return f"{lead}{winner.defense} ended highest, at {best:.1%} accuracy, all others within half a point."
    text = f"{lead}{winner.defense} ended highest, at {best:.1%} accuracy.{_describe_rejections(winner)}"
    return f"{text} Lowest was {loser.defense}, at {worst:.1%}."


def _describe_rejections(group: Group) -> str:
    malicious, honest = _mean(group, "malicious_rejected"), _mean(group, "honest_rejected")
    if not malicious and not honest:
        return ""
    parts = [f"{malicious:.1%} of the malicious"] if malicious is not None else []
    parts += [f"{honest:.1%} of the honest"] if honest is not None else []
    return f" It rejected {' and '.join(parts)} updates."


def _describe_values(groups: Sequence[Group]) -> str:
    """The same where the targets are values, which have no accuracy; empty where R² was not measured."""
    ends = [(end, group.defense) for group in groups if (end := _mean_r2(group)) is not None]
    if len(ends) < 2:
        return "".join(f"{defense} ended at an R² of {end:.3f}." for end, defense in ends)
    (best, winner), (worst, loser) = max(ends), min(ends)
    return f"{winner} ended highest, at an R² of {best:.3f}. Lowest was {loser}, at {worst:.3f}."


def _mean_r2(group: Group) -> float | None:
    known = [value for summary in group.summaries if (value := _read_metric("r2", summary)) is not None]
    return fmean(known) if known else None


def _describe_excluded(groups: Sequence[Group]) -> str:
    """Who rejected an honest client nearly always. Only where the data name their clients."""
    shares = [(group, _mean(group, "most_rejected_honest")) for group in groups if _names_clients(group)]
    excluding = [f"{group.defense} {under(group.attack)}" for group, share in shares if share and share >= EXCLUDED]
    return f" One honest client was rejected nearly always by {', '.join(excluding)}." if excluding else ""


def _names_clients(group: Group) -> bool:
    return any(run.header.get("clients") for run in group.runs)


def _mean(group: Group, key: str) -> float | None:
    known = [value for summary in group.summaries if (value := summary.get(key)) is not None]
    return fmean(known) if known else None


def _first(pair: tuple[float, Group]) -> float:
    return pair[0]


def count(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def records(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One flat record per run, for the downloads."""
    return [
        {"experiment": run.experiment, "setting": group.setting, "dataset": _dataset(run)}
        | {"defense": group.defense, "attack": group.attack, "seed": run.header.get("seed"), "rounds": run.n_rounds}
        | {"finished": run.summary is not None}
        | dict(flat(summary))
        for group in groups
        for run, summary in zip(group.runs, group.summaries, strict=True)
    ]


def _dataset(run: RunRecord) -> Any:
    named = read_setting(run.header, "experiment", "data", "dataset") or run.header.get("dataset")
    return named.get("name") if isinstance(named, Mapping) else named  # one's own has options, too


def to_json(groups: Sequence[Group]) -> str:
    return json.dumps(records(groups), indent=1, default=str)


def to_csv(groups: Sequence[Group]) -> str:
    lines = records(groups)
    text = StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({key: _inert(value) for key, value in line.items()} for line in lines)
    return text.getvalue()


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula, with an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
