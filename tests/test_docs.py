"""The documents are true: their Python runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from cosdefense.cli import app
from cosdefense.runs.experiment_file import load
from forked import run_code, run_command

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "flower" / "README.md",
    ROOT / "examples" / "secure" / "README.md",
]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name != "CONTRIBUTING.md"  # its block is a file of the package, and tested as one below
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path) -> None:
    done = run_code(block, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 1


@pytest.mark.slow
def test_the_filter_of_the_recipe_works_in_the_package(tmp_path: Path) -> None:
    """What CONTRIBUTING tells people to do, done in a copy of the package."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    copy = shutil.copytree(ROOT / "src" / "cosdefense", tmp_path / "cosdefense")
    (copy / "filters" / "largest.py").write_text(block, encoding="utf-8")
    with (copy / "filters" / "__init__.py").open("a") as file:
        file.write("from .largest import Largest\n")
    catalog = (copy / "catalog" / "registry.py").read_text(encoding="utf-8")
    catalog = catalog.replace('"clip": filters.Clip,', '"clip": filters.Clip, "largest": filters.Largest,')
    (copy / "catalog" / "registry.py").write_text(catalog, encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "import cosdefense; from cosdefense.catalog.registry import FILTERS; "
        "from cosdefense.testing import check_filter; "
        f"assert cosdefense.__file__.startswith({str(tmp_path)!r}); check_filter(FILTERS['largest']())"
    )
    done = run_code(code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def find_shell_blocks(text: str) -> list[str]:
    """The blocks of shell commands of a page, with continued lines joined."""
    return [re.sub(r" \\\n +", " ", block) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]


def commands() -> Iterator[Any]:
    """Every command in a block of shell lines or between backticks, without what its output is sent to."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in find_shell_blocks(text) for line in block.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in dict.fromkeys(lines):
            if line.startswith(("cosdefense ", "make ", "pip install ", "python ")):
                yield pytest.param(line.split(" > ")[0], id=f"{page.name}: {line[:60]}")


@pytest.mark.parametrize("command", [*commands()])
def test_commands_are_understood(command: str) -> None:
    """Commands and options exist, values have the right type, files are there, experiments accept what is changed."""
    program, *words = shlex.split(command, comments=True)
    if program == "cosdefense":
        name, options = parsed(typer.main.get_command(app), words)
        if name == "run" and options.get("file", "FILE") != "FILE":
            load(ROOT / options["file"], options["changes"] or ())
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert words[0] in targets
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for named in re.findall(r"(?:cosdefense|\.)\[([a-z,]+)\]", " ".join(words)):
            assert set(named.split(",")) <= set(extras)
    for word in words:
        if word.startswith(("experiments/", "examples/", "benchmarks/", "tests/")) and "<" not in word:
            assert (ROOT / word.split("::")[0]).exists() or "--out" in words, word


def parsed(command: Any, words: list[str]) -> tuple[str, dict[str, Any]]:
    """The last command named, and its options. A command may be mentioned without the arguments that it needs."""
    if isinstance(command, click.Group) and words and words != ["--help"]:
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, f"there is no command {words[0]!r}"
        return parsed(inner, words[1:])
    words = ["1" if word == "N" else word for word in words]  # a placeholder
    try:
        return command.name, command.make_context(command.name, words).params
    except click.exceptions.Exit:  # printed its help
        return command.name, {}
    except click.MissingParameter:
        assert not words, f"{command.name} needs more than {words}"
        return command.name, {}


def test_the_documents_show_commands() -> None:
    shown = {param.values[0].split()[1] for param in commands() if param.values[0].startswith("cosdefense ")}
    assert {"run", "report", "arena", "reproduce", "advise", "export"} <= shown


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_written(tmp_path: Path) -> None:
    """All but make and activating the environment, which this test already runs in."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    blocks = find_shell_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("cosdefense ")]
    assert len(commands) >= 4
    for command in commands:
        done = run_command(*shlex.split(command, comments=True)[1:], cwd=tmp_path, OMP_NUM_THREADS="1")
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "runs" / "krum-variants" / "report.html").exists()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", "cosdefense --version"], env={**os.environ, "PATH": path}, check=True)
