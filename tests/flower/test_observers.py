"""Observers of a federation: they see every round, and nothing that they do ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from federations import LocalGrid, honest, model, record
from flwr.serverapp.strategy import FedAvg

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.runs.observer import RoundObserver
from cosdefense.runs.records import RoundRecord, read_run
from cosdefense.tracking import Callback


class Notes(RoundObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.header: Mapping[str, Any] = {}
        self.earlier: list[RoundRecord] = []
        self.rounds: list[RoundRecord] = []
        self.n_ends = 0

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        self.header, self.earlier = header, list(rounds)

    def recorded(self, record: RoundRecord) -> None:
        self.rounds.append(record)

    def ended(self) -> None:
        self.n_ends += 1


class Failing(RoundObserver):
    """Raises an exception in every call."""

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        raise RuntimeError("started")

    def recorded(self, record: RoundRecord) -> None:
        raise RuntimeError("recorded")

    def ended(self) -> None:
        raise RuntimeError("ended")


def run(folder: Path | None, *observers: RoundObserver, rounds: int = 2, resume: bool = False) -> None:
    strategy = Defended(FedAvg(), Clip(), checkpoint_dir=folder, observers=observers, seed=1)
    strategy.start(LocalGrid(honest), record(model()), num_rounds=rounds, resume=resume)


def test_observers_see_what_is_recorded(tmp_path: Path) -> None:
    first, second = Notes(), Notes()
    run(tmp_path / "run", first)
    run(tmp_path / "run", second, rounds=3, resume=True)
    written = read_run(tmp_path / "run")
    assert [line.round for line in written.rounds] == [0, 1, 2]
    assert [line.to_json() for line in first.rounds] == [line.to_json() for line in written.rounds[:2]]
    assert second.earlier == list(written.rounds[:2])
    assert [line.to_json() for line in second.rounds] == [line.to_json() for line in written.rounds[2:]]
    assert first.header["defense"] == written.header["defense"]
    assert (first.n_ends, second.n_ends) == (1, 1)


def test_observers_need_no_folder() -> None:
    notes = Notes()
    run(None, notes)
    assert [line.round for line in notes.rounds] == [0, 1]


def test_a_failing_observer_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    run(None, Failing(), notes)
    assert (len(notes.rounds), notes.n_ends) == (2, 1)
    assert caplog.text.count("Failing failed; the run continues") == 4


def test_observers_hear_of_a_run_that_fails() -> None:
    notes = Notes()
    with pytest.raises(ValueError, match="resume needs"):
        run(None, notes, resume=True)
    assert notes.n_ends == 1


def test_an_observer_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="RoundObserver"):
        Defended(FedAvg(), Clip(), observers=[print])  # type: ignore[list-item]


def test_the_bytes_of_arrays_are_recorded() -> None:
    notes = Notes()
    run(None, notes, rounds=1)
    sizes = [len(array.data) for array in record(model()).values()]
    assert notes.rounds[0].n_bytes == {
        "train-sent": 8 * sum(sizes), "train-received": 8 * sum(sizes), "evaluate-sent": 8 * sum(sizes)
    }  # fmt: skip


def test_a_tracker_is_told_every_round(tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []
    settings: dict[str, object] = {}
    run(tmp_path / "run", Callback(lambda number, values: told.append((number, values["n_clients"])), settings.update))
    written = read_run(tmp_path / "run")
    assert told == [(record.round, float(len(record.clients))) for record in written.rounds]
    assert settings["strategy"] == "FedAvg"
