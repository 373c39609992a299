"""The hosted CI calls what exists, and the lowest versions that it tries are the bounds in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    needed = [*PROJECT["dependencies"]]
    for extra in ("data", "report", "watch", "metrics"):  # what the extra "all" stands for
        needed += PROJECT["optional-dependencies"][extra]
    bounds = {re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in needed}
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line and "#" not in line} == bounds


def test_the_workflow_calls_what_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"check"} <= set(re.findall(r"\bmake ([a-z]+)", WORKFLOW)) <= targets
    extras = {name for names in re.findall(r"\.\[([a-z,]+)\]", WORKFLOW) for name in names.split(",")}
    assert {"all", "dev", "test"} <= extras <= set(PROJECT["optional-dependencies"])
    for file in re.findall(r"-c (\S+)", WORKFLOW):
        assert (ROOT / file).is_file(), file


def test_the_workflow_covers_every_python() -> None:
    claimed = re.findall(r"Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    (matrix,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert re.findall(r"\d\.\d+", matrix) == claimed
