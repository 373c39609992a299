"""Python in processes that are forked from one with torch: importing it takes longer than what most of them do."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path
from subprocess import CompletedProcess

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch"])


def run_code(code: str, cwd: Path, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """As `python -W error -c CODE ARGUMENTS` in this folder."""
    return _fork(f"import warnings; warnings.simplefilter('error')\n{code}", cwd, arguments, environment)


def run_command(*arguments: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """As `cosdefense ARGUMENTS` in this folder."""
    return _fork("from cosdefense.cli import main; main()", cwd, arguments, environment)


def _fork(code: str, cwd: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("stdout", "stderr")]
        process = CONTEXT.Process(target=_run, args=(code, cwd, arguments, {**os.environ, **environment}, *paths))
        process.start()
        process.join()
        assert process.exitcode is not None
        return CompletedProcess(arguments, process.exitcode, *(path.read_text() for path in paths))


def _run(code: str, cwd: Path, arguments: tuple[str, ...], environment: dict[str, str], *paths: Path) -> None:
    for number, path in enumerate(paths, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:  # torch has read the variable before
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = type(sys)("__main__")  # what it defines can be pickled, as in a process of its own
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
