"""Where numbers come from: only a repository that holds the package itself may answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cosdefense.runs import provenance

Git = Callable[..., str]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository, and nothing of the one that the tests themselves are in."""
    for name in [name for name in os.environ if name.startswith("GIT_") or name == "COSDEFENSE_COMMIT"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    repository = tmp_path / "repository"

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=repository, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    repository.mkdir()
    git("init", "--quiet")
    return git


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is asked for, to be taken for the package."""
    folder.mkdir(parents=True)
    shutil.copy(provenance.PACKAGE / "__init__.py", folder)
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    return folder


@pytest.fixture
def committed(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = package(tmp_path / "repository" / "src" / "cosdefense", monkeypatch)
    (tmp_path / "repository" / "README").write_text("hello")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    return folder


def test_the_commit_of_a_clean_checkout(committed: Path, git: Git) -> None:
    assert provenance.commit() == git("rev-parse", "HEAD")[:12]


def test_a_changed_package_is_marked(committed: Path, git: Git) -> None:
    (committed / "__init__.py").write_text("changed = True")
    assert provenance.commit() == f"{git('rev-parse', 'HEAD')[:12]} with changes"
    git("add", ".")  # staged is changed too
    assert provenance.commit() == f"{git('rev-parse', 'HEAD')[:12]} with changes"


def test_what_is_not_the_package_does_not_count_as_changed(committed: Path, git: Git) -> None:
    (committed.parents[1] / "README").write_text("changed")
    assert provenance.commit() == git("rev-parse", "HEAD")[:12]


def test_asking_writes_nothing(committed: Path) -> None:
    """Somebody may be committing at the very moment."""
    index = committed.parents[1] / ".git" / "index"
    os.utime(committed / "__init__.py", (1, 1))  # git would like to note that it looked
    before = index.read_bytes()
    provenance.commit()
    assert index.read_bytes() == before


def test_outside_any_repository(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "site-packages" / "cosdefense", monkeypatch)
    assert provenance.commit() is None


def test_a_repository_that_happens_to_be_around(committed: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment inside somebody's project: its commit says nothing about an installed package."""
    package(committed.parents[1] / ".venv" / "cosdefense", monkeypatch)
    assert provenance.commit() is None


def test_a_repository_without_a_commit(tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path / "repository" / "cosdefense", monkeypatch)
    git("add", ".")
    assert provenance.commit() is None


def test_a_machine_without_git(committed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() is None


def test_files_without_their_history_are_told_it(committed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSDEFENSE_COMMIT", "0123456789ab")
    assert provenance.commit() == "0123456789ab"


def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "my file.toml", "--set", 'defenses=[{name="median"}]', "--out", "it's"]
    expected = """cosdefense run 'my file.toml' --set 'defenses=[{name="median"}]' --out 'it'"'"'s'"""
    assert provenance.command(words) == expected
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/cosdefense", *words])
    assert provenance.command() == expected
