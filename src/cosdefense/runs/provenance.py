"""Where numbers come from: the commit of the code and the command that ran it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def commit() -> str | None:
    """The commit that this package is checked out at, marked if it was changed since; None for an installed one.

    On a machine that has the files without their history, COSDEFENSE_COMMIT says it.
    """
    if told := os.environ.get("COSDEFENSE_COMMIT"):
        return told
    found = _git("ls-files", "--error-unmatch", "__init__.py")  # a repository that happens to be around does not count
    head = _git("rev-parse", "--short=12", "HEAD")
    if found is None or head is None:
        return None
    return f"{head} with changes" if _git("status", "--porcelain", "--untracked-files=no", ".") else head


def command(arguments: Sequence[str] | None = None) -> str:
    """What was typed."""
    return shlex.join(["cosdefense", *(sys.argv[1:] if arguments is None else arguments)])


def _git(*arguments: str) -> str | None:
    asking = ["git", "--no-optional-locks", *arguments]  # else a commit that somebody makes just now could fail
    try:
        done = subprocess.run(asking, cwd=PACKAGE, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
