"""The examples on the pages of the site: what they print is what the pages show."""

from __future__ import annotations

import doctest
import re
import runpy
from contextlib import chdir
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if ">>> " in path.read_text(encoding="utf-8")]
NEEDED = {"tracking.md": ("flwr", "tensorboard", "polars"), "nvflare.md": ("nvflare",)}  # libraries of extras


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_is_shown(page: Path) -> None:
    for library in NEEDED.get(page.name, ()):
        pytest.importorskip(library)
    text = "\n".join(re.findall(r"```pycon\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    with chdir(ROOT):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.attempted >= 3
    assert result.failed == 0


def test_there_are_examples() -> None:
    assert {"own-loop.md", "defenses.md", "simulation.md", "testing.md"} <= {page.name for page in PAGES}


@pytest.mark.slow
def test_the_own_loop_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "own_loop.py"))
    shown, printed = shown_output("own_loop.py"), capsys.readouterr().out
    assert hide_accuracies(printed) == hide_accuracies(shown)  # other computers round differently
    for name, low, high in (("the mean", 0.0, 0.3), ("Factions", 0.85, 1.0)):
        final = re.findall(r"accuracy (\S+),", printed.split(name)[1].split(":\n")[1].split("\n\n")[0])[2]
        assert low <= float(final) <= high


def shown_output(script: str) -> str:
    page = (ROOT / "docs" / "tutorials" / "examples.md").read_text(encoding="utf-8")
    output = re.search(rf"python examples/{script}\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert output is not None
    return output[1]


def hide_accuracies(text: str) -> str:
    return re.sub(r"accuracy 0\.\d\d", "accuracy", text)


def test_the_simulation_is_shown() -> None:
    """What it prints is checked by tests/simulation/test_simulation_example.py."""
    lines = shown_output("simulation.py").splitlines()
    assert [int(line.split(":")[0].split()[1]) for line in lines] == list(range(10, 101, 10))
