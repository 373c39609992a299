"""Test seeds are run once, by code that is committed and does not change meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...catalog.options import ConfigError
from ...runs import provenance
from ...runs.experiment import Experiment
from ...runs.records import RECORDS
from ..study import experiments_folder
from .seeds import SEED_SETS, TEST, find_seed_set, show_seeds


def check_frozen(planned: Sequence[Experiment], folder: Path) -> None:
    """An error if runs with test seeds are planned, and the code is not committed or other code began such runs.

    An installed package has no commit: its version stands for its code.
    """
    tests = [run for run in planned if find_seed_set(run.seeds[0]) == TEST]
    if not tests:
        return
    seeds, files = show_seeds(SEED_SETS[TEST]), experiments_folder("arena")
    code = provenance.commit(files)
    if code is None and not files.is_relative_to(provenance.PACKAGE):
        raise ConfigError(
            f"seeds {seeds} test code that is frozen, and these files have no history: name their commit "
            "in COSDEFENSE_COMMIT"
        )
    if code is None:
        code = __version__
    elif code.endswith(provenance.CHANGED):
        raise ConfigError(f"seeds {seeds} test code that is frozen: commit what was changed since {code.split()[0]}")
    for header in _read_headers(tests, folder):
        began = read_code(header)
        if not provenance.have_same_code(began, code, files):
            raise ConfigError(
                f"seeds {seeds} are run once: {folder} holds runs of {began}, and this is {code}; go back to it, or "
                "choose another --out"
            )


def read_code(header: Mapping[str, Any]) -> str:
    """Which code made a run: its commit, or the version of an installed package."""
    return str(header.get("commit") or header.get("versions", {}).get("cosdefense") or "unknown code")


def _read_headers(runs: Sequence[Experiment], folder: Path) -> Iterator[dict[str, Any]]:
    """Of those runs that were begun."""
    for run in runs:
        path = run.folder(folder) / RECORDS
        if path.exists():
            with path.open(encoding="utf-8") as file:
                yield json.loads(file.readline())
