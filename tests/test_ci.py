"""The hosted CI calls what exists, and the lowest versions that it tries are the bounds in pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    needed = [*PROJECT["dependencies"]]
    (installed,) = re.findall(r"-c constraints-lowest.txt -e \"\.\[([a-z,]+)\]", WORKFLOW)
    for extra in installed.split(","):
        needed += PROJECT["optional-dependencies"][extra] if extra != "test" else []
    bounds = {re.sub(r">=([\d.]+).*", r"==\1", requirement) for requirement in needed}
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line and "#" not in line} == bounds


def test_all_means_all() -> None:
    """Every extra that a user may want; the others are for developers of this package."""
    (named,) = re.findall(r"^cosdefense\[([a-z,]+)\]$", "\n".join(PROJECT["optional-dependencies"]["all"]))
    for_developers = {"all", "bench", "dev", "test", "docs"}
    assert {*named.split(",")} == {*PROJECT["optional-dependencies"]} - for_developers


def test_nobody_is_told_to_install_from_an_index() -> None:
    """The name is not ours there: whoever owns it would run code on the computers of those who follow the hint."""
    kinds = (".py", ".md", ".toml", ".yml", "Makefile", "Containerfile")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in tracked.splitlines() if name.endswith(kinds)]
    assert len(files) > 100
    command = re.compile(
        r"(pip3?|uv( pip)?|pipx) +(install|add)\b[^\n`]*[ '\"]cosdefense(\[|==|[ '\"`]|$)", re.MULTILINE
    )
    for file in files:
        found = command.search(file.read_text(encoding="utf-8"))
        assert found is None or file == Path(__file__), f"{file}: {found[0]}"


def test_the_workflow_calls_what_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"check"} <= set(re.findall(r"\bmake ([a-z]+)", WORKFLOW)) <= targets
    extras = {name for names in re.findall(r"\.\[([a-z,]+)\]", WORKFLOW) for name in names.split(",")}
    assert {"data", "dev", "test"} <= extras <= set(PROJECT["optional-dependencies"])
    for file in re.findall(r"-c (\S+)", WORKFLOW):
        assert (ROOT / file).is_file(), file


def test_the_workflow_covers_every_python() -> None:
    claimed = re.findall(r"Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    (matrix,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert re.findall(r"\d\.\d+", matrix) == claimed
