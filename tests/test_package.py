"""The public names, which way imports point, and what importing does not load."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cosdefense.reproduction import plan

SOURCE = Path(__file__).parents[1] / "src" / "cosdefense"

PUBLIC = {
    "cosdefense": {
        "Aggregator", "Attack", "ClientHook", "ClientTable", "Cohort", "Defense", "Filter", "Judgment", "Layout",
        "MissingTrustedData", "Need", "TooFewClients", "TrustedData", "Verdict", "recipe",
    },
    "cosdefense.filters": {
        "ByGARS", "ByGARSPlusPlus", "Clip", "CosDefense", "DiverseFL", "FLTrust", "Factions", "FoolsGold", "Krum",
        "PCAClusters", "Pace", "RFFL", "Sageflow", "Voices",
    },
    "cosdefense.aggregators": {
        "Bulyan", "CenteredClipping", "GeometricMedian", "Mean", "Median", "NoisyMean", "SteadyMean",
        "TrimmedMean",
    },
    "cosdefense.hooks": {"AdversarialTraining", "FLWBC"},
    "cosdefense.attacks": {
        "ALIE", "Adaptive", "Attack", "Backdoor", "Camouflage", "Effort", "ExplicitBoosting", "InnerProduct",
        "KrumPoisoning", "LabelFlip", "LearnedPolicy", "Mimic", "MinMax", "MinSum", "Noise", "OrthogonalInnerProduct",
        "SignFlip", "TrimmedMeanPoisoning",
    },
    "cosdefense.flower": {"Defended", "Reason", "red_team"},
}  # fmt: skip

# Each room may import from itself and from the rooms before it.
ROOMS = (
    {"ops", "layout", "randomness", "options", "records", "kinds", "workplace", "mailbox"},
    {"cohort", "memory", "metrics"},
    {"defense"},
    {"filters", "aggregators", "hooks", "attacks"},
    {
        "recipes",
        "convolution",
        "task",
        "batches",
        "replay",
        "side_by_side",
        "spill",
        "client",
        "trusted",
        "models",
        "meter",
        "data",
    },
    {"catalog"},
    {"specimens", "testing", "simulation"},
    {"evaluation", "checkpoint", "report"},
    {"experiment", "journal"},
    {"preparation", "console", "listing", "reinforcement"},
    {"running", "catalog_page", "provenance", "flower"},
    {"alone", "ray_run", "grid", "errand", "ray_grid"},
    {"studies"},
    {"reproduction", "arena"},
    {"command_options", "carrying_out", "data_commands", "train_command", "arena_command", "cli", "__main__"},
)


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    found = importlib.import_module(module)
    assert set(found.__all__) == PUBLIC[module]
    assert PUBLIC[module] <= set(dir(found))
    for name in PUBLIC[module]:  # looked up when asked for, and the one that its own module has
        thing = getattr(found, name)
        assert getattr(importlib.import_module(thing.__module__), name) is thing
    with pytest.raises(AttributeError, match="'Defence'"):
        _ = found.Defence


def room_of(module: str) -> int:
    return next(i for i, room in enumerate(ROOMS) if module in room)


def test_imports_point_one_way() -> None:
    seen = 0
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        if relative == Path("__init__.py"):
            continue  # it re-exports, and nobody but the edges imports it
        own = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level == 0:
                continue
            # The folder the dots lead to, as a path below the package.
            base = relative.parts[: len(relative.parts) - node.level]
            target = [*base, *(node.module.split(".") if node.module else [])]
            names = [target[0]] if target else [alias.name for alias in node.names if alias.name != "__version__"]
            for name in names:
                seen += 1
                assert room_of(name) <= room_of(own), f"{relative} imports {name}, which lies behind it"
    assert seen > 50


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_is_light() -> None:
    heavy = {"sklearn", "altair", "vl_convert", "typer", "rich", "flwr", "PIL", "beartype", "safetensors", "tomli_w"}
    assert not heavy & loaded_by("import cosdefense, cosdefense.filters, cosdefense.aggregators, cosdefense.attacks")
    assert not heavy & loaded_by("import cosdefense.simulation, cosdefense.testing")


ROOMS_OF_PARTS = ("aggregators", "attacks", "filters", "hooks")


def test_importing_the_package_does_not_even_load_torch_until_a_name_is_asked_for() -> None:
    assert not {"torch", "numpy"} & loaded_by("import cosdefense")
    assert "torch" in loaded_by("import cosdefense; cosdefense.Defense")
    for room in ROOMS_OF_PARTS:
        assert "torch" in loaded_by(f"import cosdefense; cosdefense.{room}.__all__")


# Asks every command for help in one process, and says after which one something heavy was loaded.
HELP_OF_ALL = """
import sys
from contextlib import redirect_stdout, suppress
from io import StringIO
import typer
from cosdefense.cli import app, main

def ask(command, words):
    sys.argv = ["cosdefense", *words, "--help"]
    with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
        main()
    assert "Usage: cosdefense " + " ".join(words) in shown.getvalue(), shown.getvalue()
    print(" ".join(words) or "-", *{"torch", "numpy"} & set(sys.modules))
    for name, inner in getattr(command, "commands", {}).items():
        ask(inner, (*words, name))

ask(typer.main.get_command(app), ())
"""


def test_help_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = done.stdout.splitlines()
    assert {"-", "demo", "run", "reproduce", "arena", "report", "train-attack", "list", "data", "data fetch"} <= set(
        asked
    )


def test_the_command_line_leaves_plotting_and_data_libraries_alone() -> None:
    heavy = {"sklearn", "altair", "vl_convert", "PIL", "flwr", "gymnasium", "stable_baselines3"}
    assert not heavy & loaded_by("import cosdefense.cli, cosdefense.reinforcement")


def test_nothing_unpickles() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {"pickle", "marshal", "shelve", "joblib", "dill"} & {alias.name for alias in node.names}, (
                    path
                )
            if isinstance(node, ast.ImportFrom):
                assert node.module not in {"pickle", "marshal", "shelve", "joblib", "dill"}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert (node.arg, ast.unparse(node.value)) in (("allow_pickle", "False"), ("weights_only", "True")), (
                    path
                )


def test_the_wheel_brings_what_reproduce_runs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed here")
    repository, unpacked = SOURCE.parents[1], tmp_path / "unpacked"
    build = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=repository, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    for study in ("paper", "arena"):
        ours, shipped = repository / "experiments" / study, unpacked / "cosdefense" / "experiments" / study
        kept = {path.name: path.read_bytes() for path in ours.iterdir() if path.is_file()}
        assert {path.name: path.read_bytes() for path in shipped.iterdir()} == kept
    assert {path.name for path in (unpacked / "cosdefense").iterdir()} == {"experiments"} | {
        path.name for path in SOURCE.iterdir() if path.name != "__pycache__"
    }
    ask = "from cosdefense.reproduction import files, plan; print(len(plan(['all'])), files(), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    n_runs, found = done.stdout.splitlines()
    assert Path(found) == unpacked / "cosdefense" / "experiments" / "paper"
    assert int(n_runs) == len(plan(["all"]))
