"""What a run on another machine sends home is enough to go on from, wherever it breaks off."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from cosdefense.catalog.options import ConfigError
from cosdefense.data.datasets import load as load_data
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.experiment import from_table
from cosdefense.runs.many_runs import Job
from cosdefense.runs.ray.remote_run import RemoteRun
from cosdefense.runs.ray.transport import Inbox, Parcel
from cosdefense.runs.ray.worker import RunRequest, run_order
from cosdefense.runs.records import RoundRecord, complete_lines, read_run
from cosdefense.runs.run_folder import is_finished
from cosdefense.runs.single_run import federated, run

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


def errand(folder: Path, shown: list[int]) -> RemoteRun:
    folder.mkdir(exist_ok=True)
    order = RunRequest(CELL, federated, "cpu", {"command": "a test"}, checkpoint_seconds=0.0, parcel_seconds=0.0)

    def show(record: RoundRecord) -> None:
        shown.append(record.round)

    return RemoteRun(Job(CELL, folder, "sent"), order, show)


def content(folder: Path) -> tuple[object, ...]:
    lines = [
        {key: value for key, value in line.items() if key not in ("seconds", "peak_memory", "summary", "command")}
        for line in complete_lines(folder / "records.jsonl")
    ]
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
        return lines, file.metadata(), tensors, (folder / "experiment.toml").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    list(run(CELL, folder, load_data("digits"), torch.device("cpu")))
    return folder


@pytest.mark.parametrize("seed", range(5))
def test_killed_again_and_again_on_either_side_it_ends_in_the_same_bits(whole: Path, tmp_path: Path, seed: int) -> None:
    luck, digits, shown = random.Random(seed), load_data("digits"), list[int]()
    home, deaths = tmp_path / "home", 0
    while not is_finished(home):
        sent = errand(home, shown)

        def post(parcel: Parcel, sent: RemoteRun = sent) -> bool:
            ending = luck.choice(["worker", "driver", *["nobody"] * 6])
            if ending == "driver":  # between the records and what belongs to them
                sent.store(replace(parcel, files={}))
            if ending != "nobody":
                raise Killed
            sent.store(parcel)
            return False

        try:
            run_order(sent.begin(), digits, post)
        except Killed:
            deaths += 1
            assert deaths < 200
    assert deaths > 0
    assert content(home) == content(whole)
    assert set(shown) == set(range(12))


def test_told_to_stop_it_sends_all_that_it_has_done(whole: Path, tmp_path: Path) -> None:
    home, shown, digits = tmp_path / "home", list[int](), load_data("digits")
    sent = errand(home, shown)
    answers = iter([False, False, True, True])

    def post(parcel: Parcel) -> bool:
        sent.store(parcel)
        return next(answers)

    order = replace(sent.begin(), checkpoint_seconds=1e9)  # nothing is saved but by the stop itself
    run_order(order, digits, post)
    assert shown == [0, 1, 2]
    assert read_checkpoint(home / "checkpoint.safetensors").next_round == 3
    list(run(CELL, home, digits, torch.device("cpu")))
    assert content(home) == content(whole)


def test_deaths_are_forgiven_by_a_new_checkpoint_only(tmp_path: Path) -> None:
    sent = errand(tmp_path / "home", [])
    sent.deaths = 3
    sent.store(Parcel(0, b'{"experiment":{}}\n', {"experiment.toml": b""}))
    assert sent.deaths == 3
    sent.store(Parcel(18, b'{"round":0,"clients":[],"weights":[]}\n', {"checkpoint.safetensors": b""}))
    assert sent.deaths == 0
    assert len(read_run(tmp_path / "home").rounds) == 1


def test_what_came_with_the_order_is_not_sent_back(tmp_path: Path) -> None:
    home, digits, parcels = tmp_path / "home", load_data("digits"), list[Parcel]()
    first = run(CELL, home, digits, torch.device("cpu"))
    next(first)
    first.close()

    def post(parcel: Parcel) -> bool:
        parcels.append(parcel)
        return True

    run_order(replace(errand(home, []).begin(), checkpoint_seconds=1e9), digits, post)
    assert "checkpoint.safetensors" not in parcels[0].files
    assert "checkpoint.safetensors" in parcels[1].files


def test_another_version_is_refused(tmp_path: Path) -> None:
    order = replace(errand(tmp_path / "home", []).begin(), version="0.0.0")
    with pytest.raises(ConfigError, match=r"has cosdefense .*, the command is of 0\.0\.0"):
        run_order(order, load_data("digits"), lambda parcel: False)


def test_the_mailbox_keeps_order_and_tells_everybody_to_stop() -> None:
    mailbox, parcels = Inbox(), [Parcel(i, b"", {}) for i in range(3)]
    assert [mailbox.post(7, parcel) for parcel in parcels[:2]] == [False, False]
    assert mailbox.collect() == [(7, parcels[0]), (7, parcels[1])]
    mailbox.stop()
    assert mailbox.post(8, parcels[2])
    assert mailbox.collect() == [(8, parcels[2])]
    assert mailbox.collect() == []
