"""What trackers are told, against the records, for one run and for the runs of a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from commands import called
from cosdefense.runs.records import RoundRecord, read_run
from cosdefense.tracking import Callback, Tracker
from cosdefense.tracking.tracker import Setting

HEADER = {
    "experiment": {"name": "x", "training": {"rounds": 3}, "defenses": [{"name": "krum", "keep": 2}]},
    "attack": "none", "defense": "Krum", "seed": 4, "split": [[1, 2]],
}  # fmt: skip
ROUNDS = [
    RoundRecord(0, (1, 2), (1.0, 0.0), malicious=(False, True), accuracy=0.5, loss=math.inf, seconds={"train": 2.0}),
    RoundRecord(1, (3,), (1.0,), skipped="too few clients", class_recalls=(0.25, None)),
    RoundRecord(2, (1,), (0.5,), n_bytes={"train-sent": 10}),
]
VALUES = [
    {"accuracy": 0.5, "seconds_train": 2.0, "n_clients": 2.0, "n_rejected": 1.0, "n_malicious": 1.0,
     "n_malicious_rejected": 1.0},
    {"class_recalls_0": 0.25, "n_clients": 1.0, "n_rejected": 0.0},
    {"n_bytes_train-sent": 10.0, "n_clients": 1.0, "n_rejected": 0.0},
]  # fmt: skip


def test_a_callback_gets_settings_rounds_and_the_end() -> None:
    told: list[object] = []
    tracker = Callback(lambda *round_: told.append(round_), told.append, lambda: told.append(None))
    tracker.started(HEADER, ROUNDS[:1])  # one round was recorded before the run was resumed
    for record in ROUNDS[1:]:
        tracker.recorded(record)
    tracker.ended()
    settings = {
        "name": "x", "training.rounds": 3, "defenses.0.name": "krum", "defenses.0.keep": 2, "attack": "none",
        "defense": "Krum", "seed": 4,
    }  # fmt: skip
    assert told == [settings, *enumerate(VALUES), None]


class HoldsTwo(Tracker):
    """As a tracker that was told two rounds before the run was resumed."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def begin(self, settings: Mapping[str, Setting]) -> int:
        return 2

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self.rounds.append(number)


def test_no_round_is_told_twice() -> None:
    tracker = HoldsTwo()
    tracker.started(HEADER, ROUNDS[:1])
    for record in (*ROUNDS[1:], *ROUNDS[1:]):  # a run on a cluster may go back to a checkpoint
        tracker.recorded(record)
    assert tracker.rounds == [2]


TOML = """
name = "tracked"
track = ["own:Told"]
seeds = [0, 1]
[data]
clients = 20
[model]
name = "mlp"
[training]
rounds = 4
sampled = 5
batch = 4
evaluate_every = 2
[[defenses]]
name = "median"
"""
OWN = """
from pathlib import Path
from cosdefense.tracking import Tracker

class Told(Tracker):
    def begin(self, settings):
        self.seed = settings["seed"]
        return 0

    def log(self, number, values):
        with Path("told.txt").open("a") as file:
            file.write(f"{self.seed} {number} {values.get('accuracy')}\\n")

class Broken(Tracker):
    def begin(self, settings):
        return 0

    def log(self, number, values):
        raise OSError("no such server")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tracked.toml").write_text(TOML)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_a_tracker_of_ones_own_in_the_file(folder: Path) -> None:
    assert called("run", "tracked.toml", cwd=folder).returncode == 0
    runs = sorted((folder / "runs" / "tracked").glob("*-seed*"))
    recorded = [(seed, record) for seed, run in enumerate(runs) for record in read_run(run).rounds]
    shown = [line.split() for line in (folder / "told.txt").read_text().splitlines()]
    assert [(int(seed), int(number)) for seed, number, _ in shown] == [(seed, r.round) for seed, r in recorded]
    for (_, _, accuracy), (_, record) in zip(shown, recorded, strict=True):
        assert (
            accuracy == "None"
            if record.accuracy is None
            else float(accuracy) == pytest.approx(record.accuracy, rel=1e-5)
        )


def test_a_tracker_that_fails_ends_no_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = called("run", "tracked.toml", "--track", "own:Broken", "--set", "seeds=[0]", cwd=folder)
    assert done.returncode == 0
    assert "Broken failed; the run continues" in caplog.text
    assert len((folder / "told.txt").read_text().splitlines()) == 4  # the other tracker was told all


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("tensorbord", "tracker 'tensorbord' is unknown: did you mean 'tensorboard'?"),
        ("own:TOML", "tracker 'own:TOML' cannot be imported"),
        ("pathlib:Path", "tracker 'pathlib:Path' must be a subclass of RoundObserver"),
    ],
)
def test_mistakes_are_found_before_any_run(folder: Path, word: str, complaint: str) -> None:
    done = called("run", "tracked.toml", "--track", word, cwd=folder)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (folder / "runs" / "tracked").exists()


def test_trackers_decide_no_number(folder: Path) -> None:
    from cosdefense.runs.experiment_file import load

    tracked, plain = load(folder / "tracked.toml"), load(folder / "tracked.toml", ["track=[]"])
    assert tracked.track == ("own:Told",)
    assert (tracked.fingerprint, tracked) == (plain.fingerprint, plain)
