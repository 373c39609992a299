"""A run's records, read while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosdefense.runs.checkpoint import Checkpoint
from cosdefense.runs.follow import NewRounds, RunFollower
from cosdefense.runs.records import NotARun, RoundRecord
from cosdefense.runs.run_folder import RunFolder

HEADER = {"experiment": {"name": "t"}, "defense": "median"}


def line(number: int) -> RoundRecord:
    return RoundRecord(number, (1, 2), (1.0, 0.0), accuracy=number / 100)


def numbers(new: NewRounds) -> list[int]:
    return [record.round for record in new.rounds]


def begin(path: Path, rounds: int) -> RunFolder:
    folder = RunFolder(path)
    folder.begin(HEADER)
    for number in range(rounds):
        folder.append(line(number))
    return folder


def test_only_new_rounds_are_read(tmp_path: Path) -> None:
    follower = RunFollower(tmp_path)
    assert follower.read() == NewRounds()
    assert follower.header is None
    folder = begin(tmp_path, 0)
    assert follower.read() == NewRounds()
    assert follower.header is not None
    assert follower.header["experiment"] == HEADER["experiment"]
    for number in range(3):
        folder.append(line(number))
        assert follower.read() == NewRounds((line(number),))
    assert follower.read() == NewRounds()
    assert follower.summary is None
    folder.finish()
    assert follower.read() == NewRounds()
    assert follower.summary is not None
    assert follower.summary["final_accuracy"] == 0.02


def test_many_rounds_come_in_parts(tmp_path: Path) -> None:
    begin(tmp_path, 25)
    follower = RunFollower(tmp_path)
    assert [numbers(follower.read(limit=10)) for _ in range(4)] == [
        list(range(10)), list(range(10, 20)), list(range(20, 25)), [],
    ]  # fmt: skip


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    folder = begin(tmp_path, 2)
    follower = RunFollower(tmp_path)
    follower.read()
    folder.append(line(2))
    whole = folder.records.read_bytes()
    folder.records.write_bytes(whole[:-10])
    assert follower.read() == NewRounds()
    folder.records.write_bytes(whole)
    assert follower.read() == NewRounds((line(2),))


def test_a_resumed_run_is_read_again(tmp_path: Path) -> None:
    folder = begin(tmp_path, 2)
    folder.save(Checkpoint(2, {}, {}))
    saved = folder.load()
    for number in (2, 3):
        folder.append(line(number))
    follower = RunFollower(tmp_path)
    follower.read()
    folder.rewind(saved)
    assert follower.read() == NewRounds((line(0), line(1)), restarted=True)
    folder.append(line(2))
    assert follower.read() == NewRounds((line(2),))
    folder.save(Checkpoint(3, {}, {}))
    folder.finish()
    assert follower.read() == NewRounds()
    assert follower.summary is not None
    folder.rewind(folder.load())
    assert follower.read() == NewRounds()
    assert follower.summary is None
    (tmp_path / "records.jsonl").unlink()
    assert follower.read() == NewRounds(restarted=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [("not JSON\n", "not a JSON object"), ("[]\n", "not a JSON object"), ('{"round": 1}\n', "without a header")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "records.jsonl").write_text(text)
    with pytest.raises(NotARun, match=message):
        RunFollower(tmp_path).read()
