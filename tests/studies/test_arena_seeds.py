"""Seeds of the arena: how they are named, and that test seeds are run by one committed version."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from commands import called
from cosdefense.catalog.options import ConfigError
from cosdefense.runs import provenance
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.records import read_run
from cosdefense.studies.arena.frozen import check_frozen
from cosdefense.studies.arena.plan import Choice, plan
from cosdefense.studies.arena.seeds import find_seed_set, parse_seeds, show_seeds
from cosdefense.studies.study import experiments_folder


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", (0, 1, 2)),
        ("1", (0,)),
        ("0-4", (0, 1, 2, 3, 4)),
        ("10-14", (10, 11, 12, 13, 14)),
        ("7-7", (7,)),
        ("0,3,7", (0, 3, 7)),
        ("3,0-2,1", (3, 0, 1, 2)),
    ],
)
def test_seeds_are_a_number_a_range_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0", "--seeds must be at least 1, got 0"),
        ("14-10", "--seeds: a range must go up, got 14-10"),
        ("ten", "--seeds must be how many (5), a range (10-14) or a list (0,3,7), got 'ten'"),
        ("-3", "got '-3'"),
        ("1,,2", "got '1,,2'"),
        ("", "got ''"),
    ],
)
def test_a_mistake_says_what_seeds_may_be(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_seeds(text)
    assert complaint in str(error.value)


def test_what_seeds_are_for_and_how_they_are_shown() -> None:
    assert [find_seed_set(seed) for seed in (0, 4, 5, 9, 10, 14, 15)] == [
        "design", "design", "other", "other", "test", "test", "other",
    ]  # fmt: skip
    assert show_seeds([3, 0, 1, 2, 7]) == "0–3, 7"


def planned(*seeds: int) -> tuple[Experiment, ...]:
    return plan(["digits"], [0.3], Choice(["none"], ["none"], seeds, 2)).runs


def begin(run: Experiment, folder: Path, commit: str) -> None:
    """As far as a header."""
    path = run.folder(folder) / "records.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"experiment": {}, "commit": commit}) + "\n", encoding="utf-8")


def test_test_seeds_need_committed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSDEFENSE_COMMIT", "abc with changes")
    check_frozen(planned(0, 4, 5), tmp_path)  # anything goes for the others
    with pytest.raises(ConfigError, match="seeds 10–14 test code that is frozen: commit what was changed since abc"):
        check_frozen(planned(0, 12), tmp_path)
    monkeypatch.setenv("COSDEFENSE_COMMIT", "abc")
    check_frozen(planned(0, 12), tmp_path)


def test_files_without_history_need_a_commit_and_an_installed_package_has_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit", lambda *more: None)
    with pytest.raises(ConfigError, match="these files have no history: name their commit in COSDEFENSE_COMMIT"):
        check_frozen(planned(10), tmp_path)
    monkeypatch.setattr(provenance, "PACKAGE", experiments_folder("arena").parents[1])  # as in a wheel
    check_frozen(planned(10), tmp_path)


def test_test_seeds_are_finished_by_the_code_that_began_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSDEFENSE_COMMIT", "abc")
    runs = planned(0, 10, 11)
    begin(runs[0], tmp_path, "older")  # a design seed
    begin(runs[1], tmp_path, "abc")
    check_frozen(runs, tmp_path)
    begin(runs[2], tmp_path, "def")
    with pytest.raises(ConfigError, match=r"are run once: .* holds runs of def, and this is abc"):
        check_frozen(runs, tmp_path)


def test_what_counts_as_changed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another commit with the same package and experiments is the same code; a new file among experiments is not."""
    monkeypatch.delenv("COSDEFENSE_COMMIT", raising=False)
    package, experiments = tmp_path / "package", tmp_path / "experiments"

    def commit(path: Path, text: str) -> str:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for words in (["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        known = provenance.commit(experiments)
        assert known is not None
        return known

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "PACKAGE", package)
    package.mkdir()
    (package / "__init__.py").touch()
    first, docs = commit(experiments / "a.toml", "1"), commit(tmp_path / "README.md", "text")
    code, options = commit(package / "rule.py", "2"), commit(experiments / "a.toml", "3")
    assert provenance.have_same_code(first, docs, experiments)
    assert not provenance.have_same_code(docs, code, experiments)
    assert not provenance.have_same_code(code, options, experiments)
    assert provenance.have_same_code(code, options)
    assert not provenance.have_same_code("0123456789ab", code)  # a commit that nobody knows here
    subprocess.run(["git", "tag", "frozen"], cwd=tmp_path, check=True)
    assert provenance.commit_note() == {"commit": options, "tag": "frozen"}
    (experiments / "tuned.toml").touch()
    assert provenance.commit(experiments) == f"{options} with changes"
    assert provenance.commit() == options


def test_the_command_marks_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ("--defenses", "none", "--attacks", "none", "--rounds", "2", "--seeds", "0,10", "--device", "cpu")
    monkeypatch.setenv("COSDEFENSE_COMMIT", "abc with changes")
    refused = called("arena", *tiny, cwd=tmp_path)
    assert refused.returncode == 2
    assert "commit what was changed since abc" in refused.stderr
    assert not list(tmp_path.rglob("records.jsonl"))
    monkeypatch.setenv("COSDEFENSE_COMMIT", "abc")
    done = called("arena", *tiny, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    headers = [read_run(path).header for path in tmp_path.rglob("records.jsonl")]
    assert {header["seed"] for header in headers} == {0, 10}
    for header in headers:
        assert header["design_seeds"] == [0, 1, 2, 3, 4]
        assert header["test_seeds"] == [10, 11, 12, 13, 14]
        assert header["commit"] == "abc"
    assert "design seeds and test seeds" in done.stdout
    listed = called("arena", *tiny, "--list", cwd=tmp_path)
    assert "| arena-digits-30 | 1 | 1 | 2 | 2 | 4 | 2 | 0 |" in listed.stdout
    more = called("arena", *tiny, "--dataset", "tabular", "--list", cwd=tmp_path)
    (line,) = [text for text in more.stdout.splitlines() if text.startswith("| arena-tabular-30 |")]
    assert re.fullmatch(r"\| arena-tabular-30 \| 1 \| 1 \| 2 \| 2 \| 4 \| 0 \| at least [0-9.e-]+ \|", line)
    assert not (tmp_path / "runs" / "arena" / "arena-tabular-30").exists()
