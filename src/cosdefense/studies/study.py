"""Studies: runs that belong together, planned from files that come with the package and published as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..catalog.options import ConfigError
from ..runs.experiment import Experiment
from ..runs.records import RunRecord, thin
from ..runs.single_run import Play, federated

Thinned = Callable[[RunRecord], list[dict[str, Any]]]  # the lines of a run that are kept


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


def publish_records(runs: Mapping[Path, RunRecord], out: Path, thinned: Thinned = thin) -> None:
    """The runs' records without what a repository need not keep: `out/<experiment>/<run>/records.jsonl`."""
    for folder, run in runs.items():
        lines = thinned(run)
        place = out / folder.parent.name / folder.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "records.jsonl").write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
