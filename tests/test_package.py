"""The public names, which way imports point, and what importing does not load."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cosdefense import aggregators, attacks, filters, hooks
from cosdefense.catalog.extras import MissingExtra
from cosdefense.catalog.registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS
from cosdefense.studies.paper.plan import plan
from forked import run_code

SOURCE = Path(__file__).parents[1] / "src" / "cosdefense"

# What users import; to take a name away breaks their code.
PUBLIC = {
    "cosdefense": {
        "Aggregator", "Attack", "ClientHook", "ClientTable", "Cohort", "Defense", "Filter", "Judged", "Judgment",
        "Layout", "LocalSGD", "MissingTrustedData", "Need", "Schedule", "Task", "TooFewClients", "TrustedData",
        "UnknownLayer", "Verdict", "World", "aggregators", "attacks", "filters", "get", "hooks", "presets", "read_runs",
        "simulate",
    },
    "cosdefense.flower": {
        "AllRoundsSkipped", "Defended", "HelperLost", "LegacyStrategy", "MaliciousClient", "PullLimits", "Reason",
        "SuperLinkLost", "build_client_app", "secure_mod",
    },
    "cosdefense.monitor": {
        "AccuracyFell", "Alarm", "Alarms", "NodeLost", "NodeRejected", "PrometheusMetrics", "RoundObserver",
        "RoundsSkipped", "Rule", "find_alarms",
    },
    "cosdefense.tracking": {"Callback", "MLflow", "TensorBoard", "Tracker", "WeightsAndBiases"},
    "cosdefense.secure": {"HelperUnreachable", "NoLengthProof", "RemoteHelper", "Secure"},
    "cosdefense.testing": {
        "LAYOUT", "Agreement", "WorstRound", "check_aggregator", "check_attack", "check_defense", "check_filter",
        "check_restoring", "find_worst_round",
    },
}  # fmt: skip

SLOW_IMPORTS = {"MLflow", "TensorBoard", "WeightsAndBiases"}  # seconds; their own tests import them

# Each folder may import from itself and from those before it.
FOLDERS = (
    "ops", "core", "filters", "aggregators", "hooks", "attacks", "secure", "catalog", "testing", "data", "training",
    "simulation", "runs", "report", "monitor", "tracking", "studies", "flower", "nvflare", "reinforcement", "cli",
)  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    try:
        imported = importlib.import_module(module)
    except MissingExtra as missing:
        pytest.skip(str(missing))
    assert set(imported.__all__) == PUBLIC[module]
    assert PUBLIC[module] <= set(dir(imported))
    for name in PUBLIC[module] - SLOW_IMPORTS:
        assert getattr(imported, name) is not None
    with pytest.raises(AttributeError, match="'Defence'"):
        _ = imported.Defence


@pytest.mark.parametrize(
    ("package", "parts"),
    [(aggregators, AGGREGATORS), (attacks, ATTACKS), (filters, FILTERS), (hooks, HOOKS)],
    ids=["aggregators", "attacks", "filters", "hooks"],
)
def test_every_part_of_the_catalog_is_public(package: ModuleType, parts: dict[str, type]) -> None:
    for part in parts.values():
        assert part.__name__ in package.__all__
        assert getattr(package, part.__name__) is part
        assert part.__doc__


def imported_folders(path: Path) -> Iterator[str]:
    """The folders of the package that a module imports from, by relative imports."""
    parts = path.relative_to(SOURCE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level >= len(parts):
            assert node.level == len(parts), f"{path} imports from outside the package"
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


def test_imports_point_one_way() -> None:
    folders = [path for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert {path.name for path in folders} == set(FOLDERS)
    for folder in folders:
        allowed = {*FOLDERS[: FOLDERS.index(folder.name) + 1], "__version__"}
        for path in folder.rglob("*.py"):
            assert set(imported_folders(path)) <= allowed, f"{path} imports from a folder above its own"


def loaded_by(statement: str, folder: Path) -> set[str]:
    """The modules of a process with torch after this statement."""
    done = run_code(f"import sys; {statement}; print(' '.join(sys.modules))", folder)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.slow
def test_importing_the_package_is_light(tmp_path: Path) -> None:
    heavy = {"sklearn", "altair", "vl_convert", "typer", "rich", "flwr", "PIL", "beartype", "safetensors", "tomli_w"}
    heavy |= {"cryptography", "httpx", "starlette", "uvicorn"}
    packages = "cosdefense, cosdefense.filters, cosdefense.aggregators, cosdefense.attacks"
    assert not heavy & loaded_by(f"import {packages}, cosdefense.simulation.loop, cosdefense.testing", tmp_path)


@pytest.mark.slow
def test_importing_the_package_does_not_load_torch_until_a_name_is_used() -> None:
    code = """
import sys, cosdefense
assert not {"torch", "numpy"} & {*sys.modules}
assert cosdefense.Defense and cosdefense.filters.CosDefense
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    assert {
        "-",
        "demo",
        "run",
        "reproduce",
        "arena",
        "report",
        "train-attack",
        "watch",
        "list",
        "data",
        "data fetch",
    } <= set(asked)


@pytest.mark.slow
def test_the_command_line_leaves_plotting_and_data_libraries_alone(tmp_path: Path) -> None:
    heavy = {"sklearn", "altair", "vl_convert", "PIL", "flwr", "gymnasium", "stable_baselines3"}
    assert not heavy & loaded_by("import cosdefense.cli, cosdefense.reinforcement", tmp_path)


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


@pytest.mark.slow
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
    ask = "from cosdefense.studies.paper.plan import files, plan; print(len(plan(['all']).runs), files(), sep='\\n')"
    done = run_code(f"import sys; sys.path.insert(0, {str(unpacked)!r}); {ask}", tmp_path)
    assert done.returncode == 0, done.stderr
    n_runs, found = done.stdout.splitlines()
    assert Path(found) == unpacked / "cosdefense" / "experiments" / "paper"
    assert int(n_runs) == len(plan(["all"]).runs)
