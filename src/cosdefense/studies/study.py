"""Studies: runs that belong together, planned from files that come with the package and published as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..catalog.options import ConfigError
from ..runs.experiment import Experiment
from ..runs.packed_records import PACK, read_pack
from ..runs.records import RunRecord, read_run
from ..runs.single_run import Play, federated


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    experiment: Experiment
    play: Play = federated

    @property
    def label(self) -> str:
        """How it is called while it runs; the first word of the experiment's name is that of the study."""
        (attack,), (defense,), (seed,) = self.experiment.attacks, self.experiment.defenses, self.experiment.seeds
        _, _, name = self.experiment.name.partition("-")
        return " · ".join((name, defense.label, attack.label, f"seed {seed}"))


def shipped(study: str) -> Path:
    """Where a study's experiments lie: in the package if it was installed, in the repository otherwise."""
    installed = Path(str(resources.files("cosdefense") / "experiments" / study))
    repository = Path(__file__).parents[3] / "experiments" / study
    for folder in (installed, repository):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the experiments of {study} are neither in {installed} nor in {repository}")


def read_runs_of(cells: Sequence[Cell], folder: Path) -> list[RunRecord]:
    """Those of the planned runs that are there, in the plan's order: each from its own folder, or from a pack.

    In a pack a run is found by its experiment's name, its labels and its seed. These stay what they are when an option
    of a part gets another name; the fingerprint in the name of a run's folder does not.
    """
    packed = {_identify(run): run for run in read_pack(folder / PACK)} if (folder / PACK).exists() else {}
    runs = []
    for cell in cells:
        (attack,), (defense,), (seed,) = cell.experiment.attacks, cell.experiment.defenses, cell.experiment.seeds
        own = cell.experiment.folder(folder)
        if (own / "records.jsonl").exists():
            runs.append(read_run(own))
        elif run := packed.get((cell.experiment.name, attack.label, defense.label, seed)):
            runs.append(run)
    return runs


def _identify(run: RunRecord) -> tuple[Any, ...]:
    return run.experiment, run.header.get("attack"), run.header.get("defense"), run.header.get("seed")
