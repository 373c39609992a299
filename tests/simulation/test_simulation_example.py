"""The example of the Python API runs, learns, and rejects the malicious clients and few others."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulation.py"


def test_the_example_learns_and_rejects_malicious_clients(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    rounds = [
        re.fullmatch(r"round (\d+): accuracy (.+), rejected \[(.*)\], malicious \[(.*)\]", line) for line in lines
    ]
    parts = [match.groups() for match in rounds if match]
    assert [int(number) for number, *_ in parts] == list(range(10, 101, 10))
    assert float(parts[-1][1]) > 0.8
    rejected = [set(re.findall(r"\d+", found)) for _, _, found, _ in parts]
    malicious = [set(re.findall(r"\d+", found)) for *_, found in parts]
    assert all(truth <= found for found, truth in zip(rejected, malicious, strict=True))
    assert len(set.union(*malicious)) >= 2
    n_honest = 10 * len(parts) - sum(len(truth) for truth in malicious)
    n_wrong = sum(len(found - truth) for found, truth in zip(rejected, malicious, strict=True))
    assert n_wrong <= 0.05 * n_honest  # the goal of docs/factions.md for honest updates
