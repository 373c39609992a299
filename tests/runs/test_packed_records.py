"""Packs: many runs in one file, complete, reproducible, and refused when they are something else."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cosdefense.catalog.options import ConfigError
from cosdefense.runs.packed_records import FORMAT, PACK, VERSION, compact, find_runs, read_pack, write_pack
from cosdefense.runs.records import NotARun, RoundRecord, RunRecord

ROUNDS = tuple(
    RoundRecord(
        number,
        (1, 2),
        (1.0, 0.0),
        malicious=(False, True),
        scores={"Krum": (0.1, 0.2)},
        points={"PCAClusters": ((0.0, 1.0), None)},
        accuracy=number / 10 if number % 3 == 0 else None,
        loss=2.5 if number % 3 == 0 else None,
        class_recalls=(0.5, None) if number == 3 else (),
        seconds={"train": 1.0},
        peak_memory={"train": 9},
    )
    for number in range(9)
)
RUN = RunRecord({"experiment": {"name": "x"}, "seed": 0, "split": [[1, 2]]}, ROUNDS, {"final_accuracy": 0.6})


def packed(tmp_path: Path, *runs: RunRecord) -> list[RunRecord]:
    write_pack(tmp_path / PACK, runs)
    return list(read_pack(tmp_path / PACK))


def test_a_compact_run_keeps_every_evaluation_and_the_summary(tmp_path: Path) -> None:
    (small,) = packed(tmp_path, compact(RUN))
    header = {"experiment": {"name": "x"}, "seed": 0, "thinned": True}
    assert (small.header, small.summary) == (header, RUN.summary)
    assert small.rounds == (
        RoundRecord(0, (), (), accuracy=0.0, loss=2.5),
        RoundRecord(3, (), (), accuracy=0.3, loss=2.5, class_recalls=(0.5, None)),
        RoundRecord(6, (), (), accuracy=0.6, loss=2.5),
        RoundRecord(8, (), ()),  # the last, which says how many there were
    )
    assert (RUN.thinned, small.thinned, RUN.n_rounds, small.n_rounds) == (False, True, 9, 9)
    assert compact(small) == small


def test_whole_rounds_keep_clients_and_scores(tmp_path: Path) -> None:
    (whole,) = packed(tmp_path, compact(RUN, whole_rounds=True))
    assert whole.rounds == tuple(replace(record, seconds={}, peak_memory={}) for record in ROUNDS)


def test_an_unfinished_run_is_not_published() -> None:
    with pytest.raises(ValueError, match="only a finished run can be published"):
        compact(replace(RUN, summary=None))


def test_several_runs_keep_their_order_and_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [replace(RUN, header={"experiment": {"name": "x"}, "seed": seed}) for seed in (2, 0, 1)]
    assert packed(tmp_path, *runs) == runs
    first = (tmp_path / PACK).read_bytes()
    packed(tmp_path, *runs)
    assert (tmp_path / PACK).read_bytes() == first
    assert packed(tmp_path) == []


def test_a_pack_is_public(tmp_path: Path) -> None:
    """Other than a run it is made to be read by others."""
    (tmp_path / "plain").touch()
    packed(tmp_path, RUN)
    assert (tmp_path / PACK).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_runs_are_read_from_files_packs_and_folders(tmp_path: Path) -> None:
    write_pack(tmp_path / "a" / PACK, [RUN, RUN])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "records.jsonl").write_text('{"experiment":{"name":"single"}}\n')
    found = list(find_runs(tmp_path))
    assert [run.experiment for _, run in found] == ["x", "x", "single"]
    assert [name for name, _ in found] == [
        f"{tmp_path / 'a' / PACK}:0",
        f"{tmp_path / 'a' / PACK}:1",
        str(tmp_path / "b"),
    ]
    assert len(list(find_runs(tmp_path / "a" / PACK))) == 2
    assert len(list(find_runs(tmp_path / "b" / "records.jsonl"))) == 1
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match=r"c holds no run: no records\.jsonl and no records\.jsonl\.gz"):
        list(find_runs(tmp_path / "c"))


def first_line(**changes: object) -> str:
    return json.dumps({"format": FORMAT, "version": VERSION, "lines": 1} | changes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a readable file"),
        ("{", "is not a readable file"),
        ('{"experiment": {}}', "is not a readable file"),
        (first_line(version=99), "must hold cosdefense records, version 1, got cosdefense records, version 99"),
        (first_line(format="other"), "must hold cosdefense records, version 1, got other, version 1"),
        (first_line(), "must hold 1 objects, got 0"),
        (first_line() + "\n{}", "holds a run that cannot be read"),
        (first_line() + "\n[]", "must hold 1 objects, got 0"),
        (first_line() + '\n{"header":{},"rounds":{"round":[1],"accuracy":[]},"summary":{}}', "cannot be read"),
    ],
)
def test_what_is_not_a_pack_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / PACK).write_bytes(gzip.compress(text.encode()))
    with pytest.raises(NotARun, match=complaint):
        list(read_pack(tmp_path / PACK))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_pack(tmp_path / PACK, [RUN])
    whole = (tmp_path / PACK).read_bytes()
    for content in (whole[: len(whole) // 2], b"\x00" * 20, whole[:-9] + bytes(9)):
        (tmp_path / PACK).write_bytes(content)
        with pytest.raises(NotARun, match="is not a readable file"):
            list(read_pack(tmp_path / PACK))
