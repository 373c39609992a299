"""The examples of data, models, losses and metrics of one's own do what they show."""

from __future__ import annotations

import shutil
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from cosdefense.runs.experiment_file import load
from cosdefense.runs.many_runs import run_all
from cosdefense.runs.observer import Job
from cosdefense.runs.records import RunRecord, read_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "own-data"


def script(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"own_data_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_example(name: str, folder: Path, *changes: str) -> dict[tuple[str, str], RunRecord]:
    """All runs of an example, by attack and defense."""
    experiment = load(folder / f"{name}.toml", changes)
    jobs = [Job(cell, cell.folder(folder / "runs"), "") for cell in experiment.cells()]
    run_all(jobs)
    runs = [read_run(job.folder) for job in jobs]
    return {(run.header["attack"], run.label): run for run in runs}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES, tmp_path / "own data"))


@pytest.mark.slow
def test_the_table_of_hospitals_is_what_its_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script("hospitals").write_table(tmp_path / "hospitals.csv")
    assert (tmp_path / "hospitals.csv").read_bytes() == (EXAMPLES / "hospitals.csv").read_bytes()


def test_hospitals(folder: Path) -> None:
    """The oncology center is honest and rejected in every round by Multi-Krum; the records say so."""
    runs = run_example("hospitals", folder, "training.rounds=12", 'attacks=[{name="none"}]')
    krum = runs["none", "multi-krum(contamination=0.2)"]
    assert krum.header["clients"] == ["Aberg", "Birke", "Cedar", "Dorf", "Oncology"]
    assert [sum(counts) for counts in krum.header["split"]] == [96, 80, 50, 150, 80]
    assert krum.header["experiment"]["training"]["sampled"] == 5
    assert krum.summary is not None
    worst = krum.summary["most_rejected_client"]
    assert (worst["client"], worst["rejected"], worst["rounds"]) == (4, 1.0, 12)
    assert set(worst) >= {"accuracy", "loss", "auroc", "f1"}
    last = krum.rounds[-1]
    assert [len(values) for values in last.client_metrics.values()] == [5] * 4
    fedavg = runs["none", "fedavg"]
    assert fedavg.summary is not None
    assert fedavg.summary["final_metrics"]["auroc"] > 0.97
    assert fedavg.rounds[0].weights == pytest.approx(
        [len_ / 91.2 for len_ in [[96, 80, 50, 150, 80][client] for client in fedavg.rounds[0].clients]], rel=1e-5
    )


@pytest.mark.slow
def test_tokens_and_a_transformer(folder: Path) -> None:
    runs = run_example("tokens", folder, "training.rounds=14", "data.malicious=0", 'defenses=[{name="fedavg"}]')
    (run,) = runs.values()
    assert run.summary is not None
    assert run.summary["final_accuracy"] > 0.8
    assert len(run.rounds[0].clients) == 6


@pytest.mark.slow
def test_regression(folder: Path) -> None:
    pytest.importorskip("sklearn")
    runs = run_example("regression", folder, "training.rounds=20")
    ends = {label: run.summary for (_, label), run in runs.items()}
    assert ends["fedavg"] is not None
    assert ends["median"] is not None
    assert ends["median"]["final_accuracy"] is None
    assert set(ends["median"]["final_metrics"]) == {"mae", "regression:within_half", "r2"}
    assert ends["median"]["final_metrics"]["r2"] > max(0.2, ends["fedavg"]["final_metrics"]["r2"])
    assert runs["sign-flip", "median"].header["metrics"] == {"mae": False, "regression:within_half": True, "r2": True}


def test_a_folder_of_images(folder: Path) -> None:
    pytest.importorskip("PIL")
    script("images").write_images(folder / "digit-images", 90)
    run = run_example("images", folder, "training.rounds=10")["backdoor", "fedavg"]
    assert run.header["classes"] == ["one", "two", "zero"]
    assert run.rounds[-1].attack_success is not None


def test_adapters_only(folder: Path) -> None:
    run = run_example("adapters", folder, "training.rounds=15")["sign-flip", "multi-krum(contamination=0.2)"]
    assert run.header["experiment"]["data"]["partition"]["name"] == "dirichlet"
    assert run.summary is not None
    assert run.summary["final_accuracy"] > 0.5
