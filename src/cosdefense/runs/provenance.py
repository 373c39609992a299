"""Where numbers come from: the commit of the code and the command that ran it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
CHANGED = "with changes"  # how a commit is marked if files were changed since


def commit(*more: Path) -> str | None:
    """The commit that this package is checked out at, marked if files were changed since; None for an installed one.

    Files of `more` folders count too, also new ones. On a machine that has the files without their history, set
    COSDEFENSE_COMMIT.
    """
    if given := os.environ.get("COSDEFENSE_COMMIT"):
        return given
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")  # another project's repository does not count
    head = _git("rev-parse", "--short=12", "HEAD")
    if tracked is None or head is None:
        return None
    changes = [_git("status", "--porcelain", "--untracked-files=no", ".")]
    changes += [_git("status", "--porcelain", str(folder)) for folder in more]
    return f"{head} {CHANGED}" if any(changes) else head


def commit_note() -> dict[str, str]:
    """The commit for the header of a run and its tag, where there are such."""
    known = commit()
    tag = None if known is None or known.endswith(CHANGED) else _git("describe", "--tags", "--exact-match", known)
    return ({"commit": known} if known else {}) | ({"tag": tag} if tag else {})


def have_same_code(one: str, other: str, *more: Path) -> bool:
    """Whether two commits have the same package, and the same content of more folders, as far as git can say."""
    if one == other:
        return True
    return _git("diff", "--quiet", one, other, "--", str(PACKAGE), *map(str, more)) is not None


def command(arguments: Sequence[str] | None = None) -> str:
    """What was typed."""
    return shlex.join(["cosdefense", *(sys.argv[1:] if arguments is None else arguments)])


def notes() -> dict[str, str]:
    """Command and commit, for the header of a run that a command makes."""
    return {"command": command(), **commit_note()}


def _git(*arguments: str) -> str | None:
    question = ["git", "--no-optional-locks", *arguments]  # else a commit made at this moment could fail
    try:
        done = subprocess.run(question, cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
