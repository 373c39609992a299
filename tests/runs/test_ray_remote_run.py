"""What a run on another machine uploads is enough to resume from, wherever it breaks off."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from cosdefense.catalog.options import ConfigError
from cosdefense.data.datasets import load as load_data
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.observer import Job, Observer
from cosdefense.runs.ray.remote_run import RemoteRun
from cosdefense.runs.ray.transport import Inbox, Upload
from cosdefense.runs.ray.worker import RunRequest, serve
from cosdefense.runs.records import RoundRecord, complete_lines, read_run
from cosdefense.runs.run_folder import is_finished
from interrupted_runs import rounds_run

pytestmark = pytest.mark.slow  # trains for many rounds

CELL = from_table(
    {
        "name": "sent",
        "data": {"dataset": "digits", "clients": 20},
        "model": {"name": "mlp"},
        "training": {"rounds": 12, "sampled": 5, "batch": 4, "evaluate_every": 4},
        "attacks": [{"name": "noise"}],
        "defenses": [{"name": "foolsgold"}],
    }
)


class Killed(BaseException):
    """Nothing runs after it, as nothing runs after SIGKILL."""


class Shown(Observer):
    """Remembers the rounds that it was shown."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self.rounds.append(record.round)


def remote_run(folder: Path, shown: Shown | None = None) -> RemoteRun:
    folder.mkdir(exist_ok=True)
    request = RunRequest(CELL, "cpu", {"command": "a test"}, checkpoint_seconds=0.0, upload_seconds=0.0)
    return RemoteRun(Job(CELL, folder, "sent"), request, shown or Shown())


def content(folder: Path) -> tuple[object, ...]:
    lines = [
        {key: value for key, value in line.items() if key not in ("seconds", "peak_memory", "summary", "command")}
        for line in complete_lines(folder / "records.jsonl")
        if "resumed" not in line
    ]
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
    metadata = read_checkpoint(folder / "checkpoint.safetensors").metadata
    return lines, metadata, tensors, (folder / "experiment.toml").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    rounds_run(CELL, folder, load_data("digits"))
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_killed_repeatedly_on_either_side_it_ends_in_the_same_bits(whole: Path, tmp_path: Path, seed: int) -> None:
    random_numbers, digits, shown = random.Random(seed), load_data("digits"), Shown()
    home, crashes = tmp_path / "home", 0
    while not is_finished(home):
        sent = remote_run(home, shown)

        def post(upload: Upload, sent: RemoteRun = sent) -> bool:
            ending = random_numbers.choice(["worker", "driver", *["nobody"] * 6])
            if ending == "driver":  # between the records and what belongs to them
                sent.store(replace(upload, files={}))
            if ending != "nobody":
                raise Killed
            sent.store(upload)
            return False

        try:
            serve(sent.start(), digits, post)
        except Killed:
            crashes += 1
            assert crashes < 200
    assert crashes > 0
    assert content(home) == content(whole)
    assert set(shown.rounds) == set(range(12))


def test_asked_to_stop_it_uploads_all_that_it_has_done(whole: Path, tmp_path: Path) -> None:
    home, shown, digits = tmp_path / "home", Shown(), load_data("digits")
    sent = remote_run(home, shown)
    answers = iter([False, False, True, True])

    def post(upload: Upload) -> bool:
        sent.store(upload)
        return next(answers)

    request = replace(sent.start(), checkpoint_seconds=1e9)  # nothing is saved but by the stop itself
    serve(request, digits, post)
    assert shown.rounds == [0, 1, 2]
    assert read_checkpoint(home / "checkpoint.safetensors").next_round == 3
    rounds_run(CELL, home, digits)
    assert content(home) == content(whole)


def test_only_a_new_checkpoint_resets_the_crash_count(tmp_path: Path) -> None:
    sent = remote_run(tmp_path / "home")
    sent.crashes = 3
    sent.store(Upload(0, b'{"experiment":{}}\n', {"experiment.toml": b""}))
    assert sent.crashes == 3
    sent.store(Upload(18, b'{"round":0,"clients":[],"weights":[]}\n', {"checkpoint.safetensors": b""}))
    assert sent.crashes == 0
    assert len(read_run(tmp_path / "home").rounds) == 1


def test_what_came_with_the_request_is_not_sent_back(tmp_path: Path) -> None:
    home, digits, uploads = tmp_path / "home", load_data("digits"), list[Upload]()
    rounds_run(CELL, home, digits, stop_after=1)

    def post(upload: Upload) -> bool:
        uploads.append(upload)
        return True

    serve(replace(remote_run(home).start(), checkpoint_seconds=1e9), digits, post)
    assert "checkpoint.safetensors" not in uploads[0].files
    assert "checkpoint.safetensors" in uploads[1].files


def test_another_version_is_refused(tmp_path: Path) -> None:
    request = replace(remote_run(tmp_path / "home").start(), version="0.0.0")
    with pytest.raises(ConfigError, match=r"has cosdefense .*, the command is of 0\.0\.0"):
        serve(request, load_data("digits"), lambda upload: False)


def test_the_inbox_keeps_the_order_and_asks_every_sender_to_stop() -> None:
    inbox, uploads = Inbox(), [Upload(i, b"", {}) for i in range(3)]
    assert [inbox.post(7, upload) for upload in uploads[:2]] == [False, False]
    assert inbox.take() == [(7, uploads[0]), (7, uploads[1])]
    inbox.stop()
    assert inbox.post(8, uploads[2])
    assert inbox.take() == [(8, uploads[2])]
    assert inbox.take() == []
