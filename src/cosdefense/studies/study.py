"""Studies: runs that belong together, planned from files that are part of the package and reported as one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..catalog.options import ConfigError
from ..runs.experiment import Experiment
from ..runs.packed_records import PACK, read_pack
from ..runs.records import RunRecord, read_run


def experiments_folder(study: str) -> Path:
    """Where a study's experiments lie: in the package if it was installed, in the repository otherwise."""
    installed = Path(str(resources.files("cosdefense") / "experiments" / study))
    repository = Path(__file__).parents[3] / "experiments" / study
    for folder in (installed, repository):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the experiments of {study} are neither in {installed} nor in {repository}")


def run_label(run: Experiment) -> str:
    """How a run is called while it runs. The first word of the experiment's name is that of the study."""
    (attack,), (defense,), (seed,) = run.attacks, run.defenses, run.seeds
    _, _, name = run.name.partition("-")
    return " · ".join((name, defense.label, attack.label, f"seed {seed}"))


def read_planned_runs(planned: Sequence[Experiment], folder: Path) -> list[RunRecord]:
    """Those of the planned runs that are there, in the plan's order: each from its own folder, or from the pack.

    In a pack a run is found by its experiment's name, its labels and its seed. These stay what they are when an option
    of a part gets another name; the fingerprint in the name of a run's folder does not.
    """
    packed = {_identify(run): run for run in read_pack(folder / PACK)} if (folder / PACK).exists() else {}
    runs = []
    for experiment in planned:
        (attack,), (defense,), (seed,) = experiment.attacks, experiment.defenses, experiment.seeds
        own = experiment.folder(folder)
        if (own / "records.jsonl").exists():
            runs.append(read_run(own))
        elif run := packed.get((experiment.name, attack.label, defense.label, seed)):
            runs.append(run)
    return runs


def _identify(run: RunRecord) -> tuple[Any, ...]:
    return run.experiment, run.header.get("attack"), run.header.get("defense"), run.header.get("seed")
