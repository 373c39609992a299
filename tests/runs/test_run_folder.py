"""One run's folder, as the simulator and a Flower federation use it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from cosdefense import Verdict
from cosdefense.runs.checkpoint import Checkpoint, DamagedCheckpoint, read_checkpoint, write_checkpoint
from cosdefense.runs.records import DamagedRecords, RoundRecord, read_run
from cosdefense.runs.repair import repair
from cosdefense.runs.run_folder import RunFolder
from cosdefense.runs.run_lock import RunInUse

HEADER = {"experiment": {"name": "small"}, "device": "cpu", "versions": {}, "dataset": "digits"}
TENSORS = {
    "half": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(2**62),
    "nothing": torch.zeros(0, 3),
    "view": torch.arange(6.0).view(2, 3).T,
}
METADATA = {"seed": 8, "names": ["a", "ö"], "memory": {"x": None, "y": [1.5, 2]}}


def record(number: int) -> RoundRecord:
    return RoundRecord(number, (1, 2), (1.0, 0.0), accuracy=0.5)


def folder_after(path: Path, rounds: int, checkpoint: int | None) -> RunFolder:
    """A run with so many recorded rounds, whose checkpoint includes some of them."""
    folder = RunFolder(path)
    folder.begin(HEADER)
    for number in range(rounds):
        folder.append(record(number))
        if number + 1 == checkpoint:
            folder.save(Checkpoint(number + 1, TENSORS, METADATA))
    return folder


def rounds_in(folder: RunFolder) -> list[int]:
    return [record.round for record in read_run(folder.path).rounds]


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_checkpoint_is_read_back_exactly(tmp_path: Path) -> None:
    result = folder_after(tmp_path, 3, 3).load()
    assert (result.next_round, result.metadata) == (3, METADATA)
    assert result.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert result.tensors[name].dtype == tensor.dtype
        assert torch.equal(result.tensors[name], tensor)


def test_loading_changes_nothing_and_rewinding_drops_later_rounds(tmp_path: Path) -> None:
    folder = folder_after(tmp_path, 5, 3)
    with folder.records.open("a") as file:
        file.write('{"round":5,"cli')  # as a crash leaves it
    before = contents(tmp_path)
    checkpoint = folder.load()
    assert contents(tmp_path) == before
    folder.rewind(checkpoint)
    assert rounds_in(folder) == [0, 1, 2]
    assert read_run(tmp_path).header == HEADER


def test_more_rounds_take_the_place_of_a_summary(tmp_path: Path) -> None:
    folder = folder_after(tmp_path, 2, 2)
    assert not folder.is_finished
    folder.finish()
    assert folder.is_finished
    folder.rewind(folder.load())
    assert not folder.is_finished
    folder.append(record(2))
    folder.finish()
    run = read_run(tmp_path)
    assert run.summary is not None
    assert run.summary["final_accuracy"] == 0.5
    assert [line.round for line in run.rounds] == [0, 1, 2]


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """Cut anywhere, or with any one bit changed."""
    folder = folder_after(tmp_path, 2, 2)
    content, random_numbers = folder.checkpoint.read_bytes(), random.Random(5)
    damaged = [b"", *(content[: random_numbers.randrange(len(content))] for _ in range(20))]
    for _ in range(100):
        place = random_numbers.randrange(len(content))
        changed = content[place] ^ (1 << random_numbers.randrange(8))
        damaged.append(content[:place] + bytes([changed]) + content[place + 1 :])
    for bad in damaged:
        folder.checkpoint.write_bytes(bad)
        with pytest.raises(DamagedCheckpoint, match=r"checkpoint.safetensors .*to start this run again"):
            folder.load()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"next_round": 10**9}, "next_round must be a whole number from 0 to 10,000,000, got 1000000000"),
        ({"next_round": 2.0}, r"next_round must be .*, got 2.0"),
        ({"next_round": True}, r"next_round must be .*, got True"),
        ({"next_round": None}, r"next_round must be .*, got None"),
        ({"metadata": [1]}, "metadata cannot be of type list"),
        ({"metadata": None}, "metadata cannot be of type NoneType"),
        ({"records": 5}, "records cannot be of type int"),
    ],
    ids=str,
)
def test_values_that_no_run_writes_are_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    """Their digest is right, as in a file that somebody has forged."""
    folder = folder_after(tmp_path, 2, 2)
    text = json.dumps({"next_round": 2, "metadata": {}, "records": folder.load().records} | values)
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder.checkpoint.write_bytes(save({}, {"values": text, "digest": digest}))
    with pytest.raises(DamagedCheckpoint, match=message):
        folder.load()


def test_another_number_of_rounds_than_was_recorded_is_refused(tmp_path: Path) -> None:
    folder = folder_after(tmp_path, 2, 2)
    for number in (0, 1, 3, 10**7):
        write_checkpoint(folder.checkpoint, replace(read_checkpoint(folder.checkpoint), next_round=number))
        with pytest.raises(DamagedRecords, match=rf"needs rounds 0 to {number - 1} .*: got 2 of them"):
            folder.load()
    with pytest.raises(
        DamagedRecords, match=r"of rounds 0 to 9,999,999, .* 9,999,998 are missing: restore the records"
    ):
        repair(folder)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (slice(0, 0), "got 0 of them"),
        (slice(0, 2), "got 1 of them"),
        (slice(1, None), "line 1: what was before it was removed"),
    ],
    ids=["none", "first", "no header"],
)
def test_records_that_lack_rounds_are_refused(tmp_path: Path, kept: slice, reason: str) -> None:
    folder = folder_after(tmp_path, 3, 3)
    lines = folder.records.read_text().splitlines(keepends=True)
    folder.records.write_text("".join(lines[kept]))
    before = contents(tmp_path)
    with pytest.raises(
        DamagedRecords, match=rf"needs rounds 0 to 2 .*: .*{reason}. The checkpoint is intact: .*cosdefense repair"
    ):
        folder.load()
    assert contents(tmp_path) == before


def test_rounds_without_a_checkpoint_are_discarded_only_where_that_is_allowed(tmp_path: Path) -> None:
    folder = folder_after(tmp_path, 3, None)
    with pytest.raises(ValueError, match=r"holds 3 rounds, but checkpoint.safetensors is missing"):
        folder.begin(HEADER, may_discard=1)
    assert rounds_in(folder) == [0, 1, 2]
    folder.begin(HEADER, may_discard=3)
    assert rounds_in(folder) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new"
    second = RunFolder(path).lock()
    holder = rf"new is being written by process {os.getpid()} on {socket.gethostname()} since 20\S+; wait"
    with RunFolder(path).lock(), pytest.raises(RunInUse, match=holder):
        second.__enter__()
    assert (path / "lock").read_text() == ""
    with RunFolder(path).lock():
        pass


@pytest.mark.parametrize("replaced", [True, False])
def test_a_writer_that_has_lost_its_lock_writes_nothing(tmp_path: Path, replaced: bool) -> None:
    """Somebody removed the lock file of a run that seemed dead, and perhaps resumed it."""
    folder = folder_after(tmp_path, 3, 2)
    checkpoint = folder.load()
    with folder.lock():
        (folder.path / "lock").unlink()
        with RunFolder(folder.path).lock() if replaced else nullcontext():
            before = contents(folder.path)
            writes: list[Callable[[], None]] = [
                lambda: folder.append(record(3)),
                lambda: folder.save(checkpoint),
                lambda: folder.rewind(checkpoint),
                lambda: folder.begin(HEADER),
                folder.finish,
            ]
            for write in writes:
                with pytest.raises(RunInUse, match="lock was removed or replaced while this process held it"):
                    write()
            assert contents(folder.path) == before


def test_a_record_of_a_verdict() -> None:
    nan = float("nan")
    verdict = Verdict(
        update=torch.zeros(2), weights=torch.tensor([0.0, 1.0, 1.0]),
        evidence={"cosdefense": torch.tensor([nan, 0.25, 0.5])},
        points={"pca": torch.tensor([[nan, nan], [1.0, 2.0], [3.0, 4.0]])},
    )  # fmt: skip
    result = RoundRecord.of_verdict(4, [7, 8, 9], verdict, excluded=[5], malicious=(True, False, False, True))
    assert result == RoundRecord(
        round=4, clients=(7, 8, 9, 5), weights=(0.0, 1.0, 1.0, 0.0), malicious=(True, False, False, True),
        scores={"cosdefense": (None, 0.25, 0.5, None)}, points={"pca": (None, (1.0, 2.0), (3.0, 4.0), None)},
    )  # fmt: skip
    skipped = RoundRecord.of_verdict(5, [7], None, excluded=[8], skipped="too few clients")
    assert skipped == RoundRecord(5, (7, 8), (0.0, 0.0), skipped="too few clients")
