"""The documents are true: their Python runs, their links lead somewhere, their commands exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name != "CONTRIBUTING.md"  # its block is a file of the package, and tested as one below
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
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
        "import cosdefense; from cosdefense.catalog.registry import FILTERS; "
        "from cosdefense.testing import check_filter; "
        f"assert cosdefense.__file__.startswith({str(tmp_path)!r}); check_filter(FILTERS['largest']())"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_commands_named_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = subprocess.run([sys.executable, "-m", "cosdefense", "--help"], capture_output=True, text=True, check=True)
    known = set(re.findall(r"^│ ([a-z]+) ", shown.stdout, re.MULTILINE))
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    named = set(re.findall(r"^cosdefense ([a-z]+)", blocks, re.MULTILINE))
    assert {"run", "report"} <= named <= known
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", text)) <= targets


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_written(tmp_path: Path) -> None:
    """All but make and activating the environment, which this test already runs in."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("cosdefense ")]
    assert len(commands) >= 4
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "runs" / "krum-variants" / "report.html").exists()
