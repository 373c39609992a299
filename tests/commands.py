"""The commands, called in this process: importing torch takes longer than saying what is wrong."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from cosdefense.cli.app import main


def called(*arguments: str, cwd: Path) -> CompletedProcess[str]:
    """Like `cosdefense` in another process, for commands without lasting effects. A traceback is raised here."""
    before, code = signal.getsignal(signal.SIGTERM), 0
    with (
        patch.object(sys, "argv", ["cosdefense", *arguments]),
        patch.object(warnings, "showwarning"),  # which main replaces
        chdir(cwd),
        redirect_stdout(StringIO()) as printed,
        redirect_stderr(StringIO()) as said,
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
    return CompletedProcess(arguments, code, printed.getvalue(), said.getvalue())


def environment(**others: str) -> dict[str, str]:
    """For a command in another process. The commit is given: a file that changes meanwhile must not fail a test."""
    fixed = {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "COSDEFENSE_COMMIT": "0123456789ab"}
    return {**os.environ, **fixed, **others}
