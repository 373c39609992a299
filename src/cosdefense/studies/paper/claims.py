"""Claims of the paper that it gives no numbers for, as tables: recovery, layers, aggregators, backdoors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ...report.experiment_settings import read_setting
from ...report.groups import Group
from ...report.results import area, seeds, spread
from ...report.table import NOTHING, Table
from ...runs.records import RunRecord
from .views import Paper, View, before_attack, views

RECOVERED = 0.9  # of the accuracy before the attack
DEVIATION = "Mean ± standard deviation over seeds."


@dataclass(frozen=True)
class Recovery:
    """What an attack did to the accuracy, by the evaluations from its first round on."""

    rounds: int | None  # until the first evaluation that is back; 0: it never fell; None: it never came back
    share_below: float  # of all evaluations


def measure_recovery(run: RunRecord, key: str = "accuracy") -> Recovery | None:
    """How long a run takes to have 90 % of its accuracy before the attack again.

    Counted from the first round of the attack, up to the first evaluation at 90 % or above after one below it.
    """
    start, before = read_setting(run.header, "experiment", "schedule", "attack_start"), before_attack(run, key)
    if before is None:
        return None
    measured = [(record.round + 1 - start, getattr(record, key)) for record in run.rounds if record.round >= start]
    limit = RECOVERED * before - 1e-9  # exactly 90 % is back, whatever the product rounds to
    fallen = [(number, value < limit) for number, value in measured if value is not None]
    if not fallen:
        return None
    first = next((number for number, below in fallen if below), None)
    back = None if first is None else next((n for n, below in fallen if n > first and not below), None)
    return Recovery(0 if first is None else back, fmean(below for _, below in fallen))


def make_recovery(paper: Paper) -> Table:
    """The second observation: how long each defense takes to recover, seed by seed."""
    rows = [row for view in views(paper.attacked) for group in view.groups if (row := _recovery_row(view, group))]
    note = "Rounds from the start of the attack until the accuracy is back at 90 % of that before the attack, for each "
    note += (
        "seed in order. 0: it never fell below; never: not until the end of the run. Counted to the first evaluation "
    )
    note += "that is back, so exact to the distance of two evaluations. Below 90 %: the share of all evaluations since "
    note += "the attack started."
    headings = ("Dataset", "Defense", "Rounds until it is back at 90 %", "Below 90 %", "Seeds")
    return Table("recovery", "Observation 2: recovery", note, headings, tuple(rows), 2, parts=True)


def _recovery_row(view: View, group: Group) -> tuple[str, ...] | None:
    found = [recovery for run in group.runs if (recovery := measure_recovery(run, view.key))]
    if not found:
        return None
    rounds = ", ".join("never" if recovery.rounds is None else f"{recovery.rounds:,}" for recovery in found)
    below = spread(recovery.share_below for recovery in found)
    return view.title, group.defense, rounds, below, list_seeds(group)


DETECTION = ("Final accuracy", "Last tenth", "Worst class", "Malicious rejected", "Honest rejected")
DETECTION_KEYS = ("final_accuracy", "tail_accuracy", "worst_class", "malicious_rejected", "honest_rejected")


def make_claims(paper: Paper) -> list[Table]:
    """The tables of those claims that have experiments of their own."""
    return [_make_layers(paper.layers), _make_aggregators(paper.aggregators), _make_backdoors(paper.backdoors)]


def _make_layers(groups: Sequence[Group]) -> Table:
    rows = [(group.defense, *_cells(group, DETECTION_KEYS), area(group), list_seeds(group)) for group in groups]
    note = "CosDefense on MNIST under the inner product attack, comparing one layer of update and model, or all of "
    note += f"them. AUC: how often a malicious client scores above an honest one of the same round. {DEVIATION}"
    headings = ("Compared", *DETECTION, "AUC", "Seeds")
    return Table("compared-layers", "Observation 1: which layer is compared", note, headings, tuple(rows))


def _make_aggregators(groups: Sequence[Group]) -> Table:
    keys = (*DETECTION_KEYS, "skipped_rounds")
    rows = [(group.defense, *_cells(group, keys), list_seeds(group)) for group in groups]
    note = "On MNIST under the inner product attack. Multi-Krum and the trimmed mean expect 30 % malicious clients. "
    note += "Rounds skipped: those in which too few updates were accepted for the rule behind CosDefense. " + DEVIATION
    headings = ("Defense", *DETECTION, "Rounds skipped", "Seeds")
    title = "“Compatible with any aggregation method”"
    return Table("aggregators", title, note, headings, tuple(rows))


def _make_backdoors(groups: Sequence[Group]) -> Table:
    keys = ("attack_success", "clean_target_rate", "final_accuracy", "malicious_rejected", "honest_rejected")
    rows = [(group.attack, group.defense, *_cells(group, keys), list_seeds(group)) for group in groups]
    note = "On MNIST, 30 % of the clients train a trigger. Attack success: the share of images with the trigger that "
    note += "get the target label at the end. Target rate: the same for images without the trigger. Model replacement: "
    note += f"updates are scaled by clients / attackers of the round. {DEVIATION}"
    measured = ("Attack success", "Target rate", "Final accuracy", "Malicious rejected", "Honest rejected")
    headings = ("Attack", "Defense", *measured, "Seeds")
    return Table("backdoors", "Backdoors", note, headings, tuple(rows), 2, parts=True)


def list_seeds(group: Group) -> str:
    """The seeds, and how many of the runs are not finished: their numbers are those so far."""
    unfinished = sum(run.summary is None for run in group.runs)
    return seeds(group) + (f" ({unfinished} unfinished)" if unfinished else "")


def _cells(group: Group, keys: Sequence[str]) -> list[str]:
    forms = {"skipped_rounds": ".3g"}
    cells = [spread((summary.get(key) for summary in group.summaries), forms.get(key, ".1%")) for key in keys]
    return [cell or NOTHING for cell in cells]
