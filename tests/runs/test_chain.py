"""Whoever changes, removes, adds or moves a line of the records is found, and so is the line."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import resource
import subprocess
from pathlib import Path

import pytest

from commands import called
from cosdefense.runs.chain import find_fault, read_chain, seal
from cosdefense.runs.checkpoint import Checkpoint
from cosdefense.runs.records import DamagedRecords, NotARun, RoundRecord, list_record_files, read_run
from cosdefense.runs.repair import repair
from cosdefense.runs.run_folder import RunFolder
from cosdefense.runs.verify import verify

HEADER = {"experiment": {"name": "small", "defenses": [{"name": "os:abort"}]}}  # named, and never built
ROUNDS = 8


def record(number: int) -> RoundRecord:
    return RoundRecord(number, (1, 2**62), (1.0, 0.0), accuracy=0.5, reasons=(None, "défense \u2028"))


def make_folder(path: Path, rounds: int = ROUNDS, max_file: int = 10**9) -> RunFolder:
    """A finished run whose checkpoint includes all rounds."""
    folder = RunFolder(path, max_file)
    folder.begin(HEADER)
    for number in range(rounds):
        folder.append(record(number))
    folder.save(Checkpoint(rounds, {}))
    folder.finish()
    return folder


def read_texts(folder: RunFolder) -> list[bytes]:
    return folder.records.read_bytes().splitlines(keepends=True)


def find(folder: RunFolder, texts: list[bytes]) -> str:
    """What the chain says about these lines."""
    folder.records.write_bytes(b"".join(texts))
    fault = find_fault(folder.read_lines())
    return fault[1].removeprefix(f"{folder.records}, ") if fault else "nothing"


def test_an_untouched_run_is_verified(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    result = verify(tmp_path)
    assert (result.n_lines, result.n_rounds, result.faults, result.notes) == (ROUNDS + 2, ROUNDS, (), ())
    assert read_run(tmp_path).header == HEADER
    assert result.digest == json.loads(read_texts(folder)[-1])["digest"]


def test_the_digests_are_those_of_other_tools(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 3)
    for before, text in zip([b"", *read_texts(folder)], read_texts(folder), strict=False):
        body, _, rest = text.partition(b',"digest":"')
        done = subprocess.run(["sha256sum"], input=body, capture_output=True, check=True)
        assert rest == done.stdout[:64] + b'"}\n'
        assert json.loads(text)["previous"] == (json.loads(before)["digest"] if before else "")


def test_the_line_that_was_changed_removed_added_or_moved_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    texts, n = read_texts(folder), ROUNDS + 2
    for i in range(n):
        changed = texts[i].replace(b":", b": ", 1)
        assert find(folder, [*texts[:i], changed, *texts[i + 1 :]]) == f"line {i + 1} was changed"
        assert find(folder, [*texts[:i], b"\x00\xff\n", *texts[i + 1 :]]) == f"line {i + 1} was changed"
        forged = seal({"round": 99}, json.loads(texts[i])["previous"])  # with a digest that fits its content
        assert find(folder, [*texts[:i], forged, texts[i], *texts[i + 1 :]]) == f"line {i + 1} was added"
        assert find(folder, [*texts[:i], b'{"round":3}\n', *texts[i:]]) == f"line {i + 1} was added"
        assert find(folder, [*texts[:i], texts[i], *texts[i:]]) == f"line {i + 2} was added"
    for i in range(n - 1):
        removed = find(folder, [*texts[:i], *texts[i + 1 :]])
        assert removed == f"line {i + 1}: what was before it was removed"
        swapped = find(folder, [*texts[:i], texts[i + 1], texts[i], *texts[i + 2 :]])
        assert swapped == f"line {i + 1} is out of order: it belongs after {folder.records}, line {i + 2}"
    forged = seal({"round": 3}, json.loads(texts[3])["digest"])
    assert find(folder, [*texts[:4], forged, *texts[5:]]) == "line 6: what was before it was removed"
    folder.records.write_bytes(b"".join(texts))
    assert not verify(tmp_path).faults


def test_any_changed_bit_is_found(tmp_path: Path) -> None:
    folder, generator = make_folder(tmp_path), random.Random(3)
    content = folder.records.read_bytes()
    for _ in range(300):
        place = generator.randrange(len(content) - 1)  # without its last newline the last line is merely incomplete
        flipped = bytes([content[place] ^ (1 << generator.randrange(8))])
        number = content[:place].count(b"\n") + 1
        fault = find(folder, [content[:place], flipped, content[place + 1 :]])
        assert re.match(rf"line {number}\b", fault), fault


def test_lines_cut_from_the_end_are_found_by_the_checkpoint_or_a_kept_digest(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    texts, kept = read_texts(folder), verify(tmp_path).digest
    assert not verify(tmp_path, kept).faults
    folder.records.write_bytes(b"".join(texts[:-2]))
    assert "has a checkpoint that includes other records" in verify(tmp_path).faults[0]
    folder.records.write_bytes(b"".join(texts[:-1]))
    assert not verify(tmp_path).faults  # the chain alone cannot know that there was a summary
    assert verify(tmp_path, kept).faults == (f"no line has the expected digest {kept}: lines were changed or removed",)
    rewritten = RunFolder(tmp_path / "rewritten")
    rewritten.begin(HEADER)
    rewritten.append(record(0))
    assert not verify(rewritten.path).faults  # a chain that was computed anew is as good as any
    assert verify(rewritten.path, kept).faults


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads: none of them holds a lock here
def test_a_run_is_verified_while_another_process_writes_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(HEADER)

    def write() -> None:
        for number in range(10**5):
            folder.append(record(number))
            folder.save(Checkpoint(number + 1, {}))

    writer = multiprocessing.get_context("fork").Process(target=write, daemon=True)
    writer.start()
    try:
        for _ in range(10_000):
            result = verify(tmp_path)
            assert not result.faults
            if result.n_rounds >= 60:
                break
    finally:
        writer.kill()
        writer.join()
    assert result.n_rounds >= 60


def test_what_is_dropped_when_a_run_is_resumed_is_documented(tmp_path: Path) -> None:
    """A digest of a dropped line is no proof of anything, but the error says which line documents it."""
    folder = make_folder(tmp_path, 3)
    finished = verify(tmp_path).digest
    for number in (3, 4):
        folder.rewind(folder.load())
        folder.append(record(3))
        kept = verify(tmp_path).digest
        with folder.records.open("ab") as file:
            file.write(b'{"round":4,"cli' if number == 3 else b"\x00" * 5000 + b"\n")
    folder.rewind(folder.load())
    folder.rewind(folder.load())
    result = verify(tmp_path)
    assert not result.faults
    resumed = [note.partition("round 3, ")[2] for note in result.notes]
    assert resumed == [f"{n} later lines were dropped" for n in (0, 2, 2, 0)]
    assert verify(tmp_path, finished).faults == ()  # the summary no longer counts, but it is still there
    assert verify(tmp_path, kept).faults[0].endswith(f"({folder.records}, line 8 says that it was dropped or replaced)")
    assert read_run(tmp_path).summary is None
    assert [record.round for record in read_run(tmp_path).rounds] == [0, 1, 2]


def test_a_full_disk_leaves_no_incomplete_line(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, 2)
    before, limits = folder.records.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(OSError, match=r"No space left|File too large"):
            folder.append(record(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder.records.read_bytes() == before
    folder.rewind(folder.load())
    folder.append(record(2))
    assert not verify(tmp_path).faults


def test_a_discarded_beginning_is_documented(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(HEADER)
    folder.append(record(0))
    kept = verify(tmp_path).digest
    folder.begin(HEADER, may_discard=1)
    assert not verify(tmp_path).faults
    assert f"{folder.records}, line 2 says that it was dropped" in verify(tmp_path, kept).faults[0]
    assert read_run(tmp_path).rounds == ()


def test_records_continue_in_further_files(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "many", 20, max_file=1000)
    one = make_folder(tmp_path / "one", 20)
    files = list_record_files(folder.path)
    assert [path.name for path in files[:3]] == ["records.jsonl", "records-0001.jsonl", "records-0002.jsonl"]
    assert len(files) > 5
    assert b"".join(path.read_bytes() for path in files) == one.records.read_bytes()
    assert read_run(folder.path) == read_run(folder.records) == read_run(one.path)
    assert verify(folder.path) == verify(one.path)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folder.rewind(folder.load())
    for number in range(20, 30):
        folder.append(record(number))
    assert len(list_record_files(folder.path)) > len(files)
    folder.rewind(folder.load())  # over several files
    assert [r.round for r in read_run(folder.path).rounds] == list(range(20))
    assert not verify(folder.path).faults
    list_record_files(folder.path)[2].unlink()
    with pytest.raises(NotARun, match=r"lacks records-0002.jsonl, but records-0003.jsonl is there"):
        read_run(folder.path)
    assert "records-0003.jsonl, line 1: what was before it was removed" in verify(folder.path).faults[0]
    with pytest.raises(DamagedRecords, match="cosdefense repair"):
        folder.load()
    repaired = repair(folder)
    assert repaired is not None
    assert repaired.kept + len(repaired.lost) == 20
    assert [r.lost for r in read_run(folder.path).rounds].count(True) == len(repaired.lost) > 0
    assert len(list_record_files(folder.path)) == 1


@pytest.mark.parametrize("damage", ["garbage", "zeros", "gone", "cut", "header", "unsealed", "edited"])
def test_an_intact_checkpoint_is_resumed_after_a_repair(tmp_path: Path, damage: str) -> None:
    folder = make_folder(tmp_path, 6)
    texts = read_texts(folder)
    damaged = {
        "garbage": [*texts[:2], b"garbage\n", b"{}\n", *texts[4:]],
        "zeros": [b"\x00" * 10_000],
        "gone": [],
        "cut": [*texts[:3], texts[3][:40]],
        "header": texts[1:],
        "unsealed": [b'{"experiment":{}}\n', *texts[1:]],
        "edited": [*texts[:5], texts[5].replace(b"0.5", b"0.9"), *texts[6:]],
    }[damage]
    lost = {"garbage": (1, 2), "cut": (2, 3, 4, 5), "header": (), "unsealed": (), "edited": (4,)}.get(
        damage, tuple(range(6))
    )
    folder.records.write_bytes(b"".join(damaged))
    if damage == "gone":
        folder.records.unlink()
    checkpoint = folder.checkpoint.read_bytes()
    with pytest.raises(DamagedRecords, match=f"run `cosdefense repair {tmp_path}`"):
        folder.load()
    repaired = repair(folder)
    assert repaired is not None
    assert repaired.lost == lost
    assert [path.read_bytes() for path in repaired.copies] == ([b"".join(damaged)] if damage != "gone" else [])
    assert folder.checkpoint.read_bytes() == checkpoint
    assert folder.load().next_round == 6
    expected = [RoundRecord(n, (), (), lost=True) if n in lost else record(n) for n in range(6)]
    assert list(read_run(tmp_path).rounds) == expected
    assert not verify(tmp_path).faults
    folder.rewind(folder.load())
    folder.append(record(6))
    folder.save(Checkpoint(7, {}))
    assert repair(folder) is None
    assert folder.load().next_round == 7


def test_whatever_the_damage_a_repair_keeps_only_what_was_written(tmp_path: Path) -> None:
    """Bytes are changed, cut out, put in and moved at random. A kept round is exactly what was recorded."""
    folder, generator, n_kept = make_folder(tmp_path, 6), random.Random(4), 0
    content = folder.records.read_bytes()
    for _ in range(1000 if os.environ.get("COSDEFENSE_THOROUGH") else 25):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            start, length = generator.randrange(len(damaged) + 1), generator.choice([1, 1, 10, 1000])
            piece = damaged[start : start + length]
            del damaged[start : start + generator.choice([0, length])]
            place = generator.randrange(len(damaged) + 1)
            damaged[place:place] = generator.choice([b"", b"\n", piece, generator.randbytes(length)])
        folder.records.write_bytes(damaged)
        before = verify(tmp_path)
        assert before.faults or before.notes or content in (damaged, damaged + content[len(damaged) :])
        repaired = repair(folder)
        assert folder.load().next_round == 6
        assert not verify(tmp_path).faults
        lost = repaired.lost if repaired else ()
        expected = [RoundRecord(n, (), (), lost=True) if n in lost else record(n) for n in range(6)]
        assert list(read_run(tmp_path).rounds) == expected
        n_kept += 6 - len(lost)
    assert n_kept > 0


def test_a_summary_survives_a_repair(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    summary, texts = read_run(tmp_path).summary, read_texts(folder)
    folder.records.write_bytes(b"".join([*texts[:2], *texts[3:]]))
    repair(folder)
    assert folder.is_finished
    assert read_run(tmp_path).summary == summary


def test_damage_after_the_checkpoint_needs_no_round_to_be_lost(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    folder.records.write_bytes(b"".join([*read_texts(folder)[:-1], b"garbage\n"]))
    repaired = repair(folder)
    assert repaired is not None
    assert (repaired.kept, repaired.lost, len(repaired.copies)) == (ROUNDS, (), 1)
    assert not verify(tmp_path).faults


def test_the_commands(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    digest = verify(tmp_path).digest
    done = called("verify", ".", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == ".: 10 lines, 8 rounds"
    assert done.stdout.splitlines()[-1] == digest
    assert called("repair", ".", cwd=tmp_path).stdout.endswith("there is nothing to repair\n")
    assert json.loads(called("verify", ".", "--json", cwd=tmp_path).stdout)["digest"] == digest
    texts = read_texts(folder)
    texts[4] = texts[4].replace(b'"weights":[1.0,0.0]', b'"weights":[1.0,1.0]')  # a rejected client becomes accepted
    folder.records.write_bytes(b"".join(texts))
    done = called("verify", ".", "--expect", digest, cwd=tmp_path)
    assert done.returncode == 1
    assert "error: records.jsonl, line 5 was changed" in done.stderr
    assert digest not in done.stdout
    assert "7 rounds kept, 1 lost; lost: 3\n" in called("repair", ".", cwd=tmp_path).stdout
    assert called("verify", ".", cwd=tmp_path).returncode == 0
    for command, message in (("verify", "holds no records"), ("repair", "holds no checkpoint.safetensors")):
        done = called(command, "nothing", cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert message in done.stderr
    assert not (tmp_path / "nothing").exists()


def test_an_empty_folder_has_no_fault(tmp_path: Path) -> None:
    assert find_fault(list(read_chain([]))) is None
    with pytest.raises(NotARun, match="holds no records"):
        verify(tmp_path)
