"""Files of triples: written by a dealer, used once, destroyed; everything else is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cosdefense.secure.projection import SIZE
from cosdefense.secure.triple_files import HEADER, BadTriples, Role, TripleFile, deal_files
from cosdefense.secure.triples import NoTriple, multiply


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    leader, helper = tmp_path / "leader.triples", tmp_path / "helper.triples"
    deal_files(leader, helper, 3, 4)
    return leader, helper


def test_halves_from_files_multiply(files: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(0)
    opened = [TripleFile(path, role) for path, role in zip(files, ("leader", "helper"), strict=True)]  # type: ignore[arg-type]
    leader, helper = (file.stock() for file in opened)
    assert leader.deal == helper.deal
    for n in (3, 2, 3):
        rows, theirs = rng.integers(0, 2**64, (2, n, SIZE), dtype=np.uint64)
        a, b = leader.take(helper.position), helper.take()
        masked = (rows - theirs - a.mask(n)) + (theirs - b.mask(n))
        found = multiply(masked, a, leader=True) + multiply(masked, b, leader=False)
        assert np.array_equal(found, rows @ rows.T)
    for file in opened:
        file.close()


def test_used_halves_are_gone_after_a_restart(files: tuple[Path, Path]) -> None:
    for path, role in zip(files, ("leader", "helper"), strict=True):
        before = path.read_bytes()
        file = TripleFile(path, role)  # type: ignore[arg-type]
        seeds = [file.stock().take().seed]
        file.close()
        file = TripleFile(path, role)  # type: ignore[arg-type]
        stock = file.stock()
        assert (stock.position, len(stock)) == (1, 3)
        with pytest.raises(NoTriple, match="was used, or passed over"):
            stock.take(0)
        seeds.append(stock.take().seed)
        file.close()
        after = path.read_bytes()
        assert len(after) == len(before)
        for seed in seeds:
            assert seed in before
            assert seed not in after
        assert path.stat().st_mode & 0o077 == 0
        assert file.used.stat().st_mode & 0o077 == 0


def test_a_position_that_was_lost_gives_no_triple_twice(files: tuple[Path, Path]) -> None:
    """The file itself remembers: used halves are zeros."""
    file = TripleFile(files[1], "helper")
    file.stock().take()
    file.used.unlink()
    with pytest.raises(NoTriple, match="was used"):
        TripleFile.stock(file).take(0)
    file.close()


def test_a_position_that_cannot_be_written_gives_no_triple(files: tuple[Path, Path]) -> None:
    file = TripleFile(files[0], "leader")
    before, stock = files[0].read_bytes(), file.stock()
    file.used.with_name(file.used.name + ".new").mkdir()
    with pytest.raises(NoTriple, match="cannot be remembered"):
        stock.take()
    assert (files[0].read_bytes(), stock.position) == (before, 0)
    file.close()


def test_two_processes_cannot_use_one_file(files: tuple[Path, Path]) -> None:
    file = TripleFile(files[0], "leader")
    code = (
        "import sys; from pathlib import Path; from cosdefense.secure.triple_files import TripleFile; "
        "TripleFile(Path(sys.argv[1]), 'leader')"
    )
    other = subprocess.run([sys.executable, "-c", code, files[0]], capture_output=True, text=True, check=False)
    assert "is in use by another process" in other.stderr
    file.close()


@pytest.mark.parametrize(
    ("change", "role", "needed"),
    [
        (lambda data: b"", "leader", "ends too early"),
        (lambda data: b"something else" + data, "leader", "holds no triples"),
        (lambda data: data[:-1], "leader", "wrong length"),
        (lambda data: data + b"\0", "leader", "wrong length"),
        (lambda data: data[: HEADER - 16] + b"\xff" * 8 + data[HEADER - 8 :], "leader", "wrong length"),
        (lambda data: data[: HEADER - 8] + b"\xff" * 8 + data[HEADER:], "leader", "wrong length"),
        (lambda data: data, "helper", "not for the helper"),
    ],
)
def test_other_files_are_refused(files: tuple[Path, Path], change: object, role: Role, needed: str) -> None:
    files[0].write_bytes(change(files[0].read_bytes()))  # type: ignore[operator]
    with pytest.raises(BadTriples, match=needed):
        TripleFile(files[0], role)


@pytest.mark.parametrize("text", ["", "x", "a b c", "00 1", "\xff"])
def test_other_positions_are_refused(files: tuple[Path, Path], text: str) -> None:
    used = files[0].with_name("leader.triples.used")
    used.write_text(text, encoding="latin-1")
    with pytest.raises(BadTriples, match=r"must not be used twice|other triples"):
        TripleFile(files[0], "leader")
    file = TripleFile(files[1], "helper")
    used.write_text(f"{file.deal.hex()} 5")
    with pytest.raises(BadTriples, match="belongs to other triples"):
        TripleFile(files[0], "leader")
    file.close()


def test_files_of_others_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    files[0].chmod(0o644)
    with pytest.raises(BadTriples, match="can be read by others"):
        TripleFile(files[0], "leader")
    with pytest.raises(BadTriples, match="cannot be read"):
        TripleFile(tmp_path / "none", "leader")
    with pytest.raises(FileExistsError):
        deal_files(*files, 3, 1)
    with pytest.raises(BadTriples, match="3 to 1004 rows"):
        deal_files(tmp_path / "a", tmp_path / "b", 2, 1)
