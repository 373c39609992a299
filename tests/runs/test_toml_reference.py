"""The reference of experiment files is current, complete, and its example is an experiment."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from cosdefense.runs.experiment import Experiment, to_table
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.toml_reference import build_reference

PAGE = Path(__file__).parents[2] / "docs" / "toml.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_reference(), (
        "write it again: cosdefense list --toml > docs/toml.md"
    )


def test_every_key_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = {"": text.split("## Top level")[1].split("\n## ")[0]}
    for name in re.findall(r"^## \\?\[(\w+)\\?\]$", text, re.MULTILINE):
        sections[name] = text.split(f"## [{name}]")[1].split("\n## ")[0]
    for name, value in to_table(Experiment("x")).items():
        rows = sections.get(name)
        if rows is None:
            assert f"| `{name}` |" in sections[""]
        else:
            assert all(f"| `{key}` |" in rows for key in value)


def test_the_example_is_an_experiment() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    experiment = from_table(tomllib.loads(example))
    assert (len(list(experiment.cells())), experiment.data.clients) == (8, 30)
