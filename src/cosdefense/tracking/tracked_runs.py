"""The runs of a grid, each with its own trackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog.imports import import_part
from ..catalog.options import unknown_name_error
from ..runs.observer import Job, Observer, RoundObserver, RoundObservers
from ..runs.records import NotARun, RoundRecord, read_run

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

MakeTracker = Callable[[Job], RoundObserver]
NAMES = ("tensorboard", "mlflow", "wandb")


class TrackedRuns(Observer):
    """Makes the trackers of a run when its first round is recorded. What a tracker raises is logged, no more."""

    def __init__(self, makers: Sequence[MakeTracker]) -> None:
        self._makers = tuple(makers)
        self._open: dict[Path, RoundObservers] = {}

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        if job.folder not in self._open:
            self._open[job.folder] = RoundObservers([make(job) for make in self._makers])
            self._open[job.folder].started(_describe(job.cell), _read_earlier_rounds(job.folder, record.round))
        self._open[job.folder].recorded(record)

    def run_finished(self, job: Job) -> None:
        if job.folder in self._open:
            self._open.pop(job.folder).ended()

    def close(self) -> None:
        """End the trackers of runs that were interrupted."""
        while self._open:
            self._open.popitem()[1].ended()


def choose_trackers(words: Sequence[str], out: Path) -> list[MakeTracker]:
    """Trackers by name, `NAME=WHERE`, or `package.module:Class`. A missing library is found here, before any work."""
    return [_choose_tracker(word, out) for word in words]


def _choose_tracker(word: str, out: Path) -> MakeTracker:
    name, _, where = word.partition("=")
    if ":" in name:
        part = import_part(name, RoundObserver, "tracker")
        return lambda _: part()
    if name not in NAMES:
        raise unknown_name_error("tracker", name, NAMES)
    if name == "tensorboard":
        from .tensorboard import TensorBoard

        folder = Path(where or out / "tensorboard")
        return lambda job: TensorBoard(folder / job.folder.parent.name / job.folder.name)
    if name == "mlflow":
        from .mlflow import MLflow

        make = partial(MLflow, where or None)
        return lambda job: make(experiment=job.cell.name, name=job.folder.name)
    from .wandb import WeightsAndBiases

    return lambda job: WeightsAndBiases(where or job.cell.name, job.folder.name)


def _describe(cell: Experiment) -> dict[str, object]:
    """As the header of the records, which a run on a cluster may not have sent yet."""
    from ..runs.experiment import to_table

    (seed,), (attack,), (defense,) = cell.seeds, cell.attacks, cell.defenses
    return {"experiment": to_table(cell), "attack": attack.label, "defense": defense.label, "seed": seed}


def _read_earlier_rounds(folder: Path, before: int) -> list[RoundRecord]:
    """What was recorded before the run was resumed."""
    try:
        return [record for record in read_run(folder).rounds if record.round < before] if before else []
    except NotARun:
        return []
