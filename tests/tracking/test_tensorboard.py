"""What TensorBoard reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason='needs the extra "tensorboard"')

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from commands import called
from cosdefense.runs.records import RoundRecord, read_run
from cosdefense.tracking import TensorBoard

TOML = """
[data]
clients = 20
[model]
name = "mlp"
[training]
rounds = 4
sampled = 5
batch = 4
evaluate_every = 2
"""


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.slow
def test_the_runs_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TOML)
    done = called("run", "small.toml", "--track", "tensorboard", "--track", "tensorboard=logs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs" / "small").glob("*-seed0-*")
    recorded = read_run(run).rounds
    for folder in (tmp_path / "runs" / "small" / "tensorboard", tmp_path / "logs"):
        scalars = read_scalars(folder / "small" / run.name)
        accuracies = [(record.round, record.accuracy) for record in recorded if record.accuracy is not None]
        assert [step for step, _ in scalars["accuracy"]] == [number for number, _ in accuracies]
        for (_, value), (_, expected) in zip(scalars["accuracy"], accuracies, strict=True):
            assert value == pytest.approx(expected, rel=1e-5)  # records are rounded to six digits
        assert scalars["n_clients"] == [(number, 5.0) for number in range(4)]


def test_a_resumed_run_replaces_what_was_written(tmp_path: Path) -> None:
    rounds = [RoundRecord(number, (1,), (1.0,), loss=float(number)) for number in range(4)]
    for n_before in (0, 2):  # killed after the third round, resumed from a checkpoint of the second
        tracker = TensorBoard(tmp_path)
        tracker.started({}, rounds[:n_before])
        for record in rounds[n_before : n_before + 3]:
            tracker.recorded(record)
        tracker.ended()
    assert read_scalars(tmp_path)["loss"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
