"""From an experiment's file to the runs of a tournament that fits into a time."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...catalog.options import ConfigError, coerce
from ...catalog.registry import build_attack, build_defense
from ...core.experiment_folder import reading_from
from ...ops.scores import fraction_of
from ...runs.data_section import load_dataset
from ...runs.device import choose_device
from ...runs.experiment import Entry, Experiment, to_toml
from ...runs.experiment_file import entry_names, from_table, load, read_table
from ...runs.files import write_atomically
from ...runs.observer import Job, Observer
from ...runs.records import RoundRecord
from ...training.metrics import Metric
from ..suitability import build_trial
from .budget import Costs, Size, measure_costs, minutes_for_all, plan_size
from .candidates import NO_ATTACK, REFERENCE, Candidates, Table, find_candidates, without_label
from .measured import choose_metric, measure_constant

WRITTEN_BY = "# Written by cosdefense advise"  # how a file with a plan begins
SHARE = 0.2  # of malicious clients, where the file does not say
SEEDS = (0, 1, 2)
TRIAL_SHARE = 0.05  # of the time, for timing a round


class TimeIsUp(Exception):
    """The time that was given is over."""


@dataclass(frozen=True)
class Tournament:
    """The runs, in the order in which they are made: plain averaging first, then defense by defense."""

    experiment: Experiment  # the whole grid
    file: Path  # that holds it
    defenses: Mapping[str, Table]  # by label, as in a file
    metric: Metric  # by which they are judged
    constant: float  # that metric of a model that gives the same answer for every input
    notes: tuple[str, ...]  # what was assumed, and who was left out

    def list_jobs(self, out: Path) -> list[Job]:
        order = {entry.label: i for i, entry in enumerate(self.experiment.defenses)}
        cells = sorted(self.experiment.cells(), key=lambda cell: order[cell.defenses[0].label])
        return [Job(cell, cell.folder(out), _label(cell)) for cell in cells]


class Deadline(Observer):
    """Ends runs when the time is up. What they did is saved."""

    def __init__(self, end: float) -> None:
        self._end = end

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        if time.monotonic() > self._end:
            raise TimeIsUp


def prepare(
    file: Path,
    minutes: float,
    changes: Sequence[str] = (),
    device: str = "auto",
    data_dir: Path | None = None,
    metric: str | None = None,
) -> Tournament:
    """Plan the tournament and write it beside the file. A plan for the same file and time is used again."""
    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes must be a positive number, got {minutes:g}")
    with reading_from(file.parent):  # data, model, loss, metrics and parts may lie beside the file
        return _plan(file, minutes, read_table(file, changes), device, data_dir, metric)


def _plan(
    file: Path, minutes: float, table: Mapping[str, Any], device: str, data_dir: Path | None, metric: str | None
) -> Tournament:
    base, notes = _read_base(table, file)
    dataset = load_dataset(base, data_dir)
    judged_by = choose_metric(base, dataset, metric)
    constant = measure_constant(base, dataset, judged_by)
    candidates = find_candidates(table, base, dataset, build_trial(base, dataset))
    if len(candidates.defenses) < 2 or len(candidates.attacks) < 2:
        reasons = "; ".join(candidates.left_out)
        raise ConfigError(f"a tournament needs a defense and an attack that can take part: {reasons}")
    path = file.with_name(f"{file.stem}-advise.toml")
    head = f"{WRITTEN_BY} {file.name} --minutes {minutes:g}: plan {_identify(base, candidates)}\n"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before and not before.startswith(WRITTEN_BY):
        raise ConfigError(f"{path} is needed for the plan, and was not written by this command: rename it")
    if before.startswith(head):
        experiment = replace(load(path), source=base.source)
        notes.append(f"the plan in {path} is used again")
    else:
        trial = min(TRIAL_SHARE * 60 * minutes, 20.0)
        costs = measure_costs(base, dataset, choose_device(device), candidates.seconds, trial)
        seeds = tuple(coerce(table["seeds"], tuple[int, ...], "seeds")) if "seeds" in table else SEEDS
        size = plan_size(60 * minutes, costs, len(candidates.attacks), base.training.rounds, len(seeds))
        notes += _describe_limits(size, costs, candidates, base)
        experiment = _build_grid(base, candidates, size, seeds)
        write_atomically(path, (head + to_toml(experiment)).encode())
    named = {entry_names(entry)[0]: entry for entry in candidates.defenses}
    left_out = tuple(f"left out: {reason}" for reason in candidates.left_out)
    return Tournament(experiment, path, named, judged_by, constant, (*notes, *left_out))


def _read_base(table: Mapping[str, Any], file: Path) -> tuple[Experiment, list[str]]:
    """The file's federation with plain averaging and no attack, and what was assumed about it."""
    changed = {key: value for key, value in table.items() if key not in ("attacks", "defenses", "schedule", "track")}
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-.") or "my"
    changed |= {"name": f"{name}-advise", "attacks": [NO_ATTACK], "defenses": [REFERENCE], "seeds": [0]}
    base, notes, given = from_table(changed, file.parent), list[str](), table.get("data", {}).get("malicious")
    if base.data.clients < 2:
        raise ConfigError(f"a tournament needs at least 2 clients, got {base.data.clients}")
    share = given or SHARE
    if not given:
        notes.append(f"data.malicious is {'not given' if given is None else 0}: {share:.0%} of the clients attack")
    if fraction_of(share, base.data.clients) < 1:
        share = 1 / base.data.clients
        notes.append(f"one of the {base.data.clients} clients attacks: a share of {share:.3g}")
    if "schedule" in table:
        notes.append("[schedule] is not used: attacks and defenses are active from the first round")
    return replace(base, data=replace(base.data, malicious=share)), notes


def _describe_limits(size: Size, costs: Costs, candidates: Candidates, base: Experiment) -> list[str]:
    """What a longer time would add."""
    notes = list[str]()
    wanted, minutes = base.training.rounds, minutes_for_all(costs, len(candidates.attacks), base.training.rounds)
    if size.rounds < wanted:
        notes.append(f"runs have {size.rounds} of the file's {wanted} rounds")
    for kind, entries, n in (
        ("defenses", candidates.defenses, size.n_defenses),
        ("attacks", candidates.attacks, size.n_attacks),
    ):
        if n < len(entries):
            names = ", ".join(entry_names(entry)[0] for entry in entries[n:])
            notes.append(f"no time for the {kind} {names}")
    return [*notes, f"everything takes about --minutes {minutes:g}"] if notes else []


def _build_grid(base: Experiment, candidates: Candidates, size: Size, seeds: Sequence[int]) -> Experiment:
    attacks, defenses = candidates.attacks[: size.n_attacks], candidates.defenses[: size.n_defenses]
    return replace(
        base,
        attacks=tuple(Entry(entry_names(entry)[0], build_attack(without_label(entry))) for entry in attacks),
        defenses=tuple(Entry(entry_names(entry)[0], build_defense(without_label(entry))) for entry in defenses),
        seeds=tuple(seeds[: size.n_seeds]),
        training=replace(base.training, rounds=size.rounds, evaluate_every=size.evaluate_every),
    )


def _identify(base: Experiment, candidates: Candidates) -> str:
    """The same for the same federation and participants."""
    participants = json.dumps([candidates.defenses, candidates.attacks], sort_keys=True, default=str)
    return hashlib.sha256(f"{base.fingerprint} {participants}".encode()).hexdigest()[:10]


def _label(cell: Experiment) -> str:
    (attack,), (defense,), (seed,) = cell.attacks, cell.defenses, cell.seeds
    return f"{defense.label} · {attack.label} · seed {seed}"
