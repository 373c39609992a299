"""The section [data]: what fits data of one's own is chosen, their content is part of the experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cosdefense.attacks import SignFlip
from cosdefense.catalog.options import ConfigError
from cosdefense.data import Dataset, load, split_dataset
from cosdefense.data.partition import ByClient, Dirichlet, Iid, LabelSkew
from cosdefense.report.client_table import make_client_table
from cosdefense.report.groups import group_runs
from cosdefense.report.results import describe_results
from cosdefense.runs.data_section import Data, load_dataset
from cosdefense.runs.execution import Execution
from cosdefense.runs.experiment import Entry, Experiment, Training, to_table, to_toml
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.experiment_file import load as load_experiment
from cosdefense.runs.many_runs import run_all
from cosdefense.runs.observer import Job
from cosdefense.runs.prepare import dry_run
from cosdefense.runs.records import RoundRecord, RunRecord, read_run
from cosdefense.studies.arena.plan import Choice, plan
from cosdefense.studies.arena.tables import MOST_REJECTED, RANKED

LINES = ["x,y,site", *(f"{i % 7},{'ab'[i % 2]},{'nsew'[i % 4]}" for i in range(60))]
TOML = """
[data]
dataset = { name = "mine.csv", label = "y", client = "site" }
malicious = 0.25
[model]
name = "mlp"
hidden = 2
[training]
rounds = 2
batch = 4
evaluate_every = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text("\n".join(LINES))
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path / "mine.toml"


def table(n_clients: int, **data: Any) -> dict[str, Any]:
    return {"name": "x", "data": {"dataset": "digits", "clients": n_clients, **data}}


def test_few_clients_get_a_split_that_fits() -> None:
    few, many = from_table(table(5)), from_table(table(20))
    assert (few.data.partition, few.training.sampled) == (Dirichlet(), 5)
    assert (many.data.partition, many.training.sampled) == (LabelSkew(), 10)
    dry_run(few, load("digits"))
    with pytest.raises(ConfigError, match=r"label skew needs at least one client per class.*choose .*dirichlet.*iid"):
        dry_run(from_table(table(5, partition={"name": "label-skew"})), load("digits"))


def test_each_client_of_the_data_is_a_client(file: Path) -> None:
    experiment = load_experiment(file)
    assert (experiment.data.partition, experiment.data.clients, experiment.training.sampled) == (ByClient(), 4, 4)
    assert load_experiment(file, ["data.clients=3"]).data.partition == ByClient()
    spread = load_experiment(file, ["data.partition={name='iid'}", "data.clients=12"])
    assert (spread.data.partition, spread.training.sampled) == (Iid(), 10)


def test_the_content_is_part_of_the_experiment(file: Path) -> None:
    one = load_experiment(file)
    assert from_table(to_table(one), one.source) == one
    copied = file.parent / "copy"
    copied.mkdir()
    (copied / "mine.csv").write_text("\n".join(LINES))
    (copied / "written.toml").write_text(to_toml(one))
    assert load_experiment(copied / "written.toml").fingerprint == one.fingerprint  # the same content elsewhere
    (copied / "mine.csv").write_text("\n".join([*LINES[:-1], "6,a,w"]))
    with pytest.raises(ConfigError, match=r"mine.csv: needed content with the digest \w+, found \w+: it was changed"):
        load_experiment(copied / "written.toml")
    (copied / "mine.toml").write_text(TOML)
    assert load_experiment(copied / "mine.toml").fingerprint != one.fingerprint


def test_data_that_change_while_runs_are_made_are_refused(file: Path) -> None:
    experiment = load_experiment(file)
    later = replace(experiment, data=replace(experiment.data, loaded=None))  # as in another process
    assert load_dataset(later).digest == experiment.data.digest
    (file.parent / "mine.csv").write_text("\n".join(LINES[:-4]))
    with pytest.raises(ConfigError, match="it was changed"):
        load_dataset(later)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.dataset='other.csv'"], "dataset 'other.csv' was not found: looked for"),
        (["data.dataset={name='mine.csv'}"], "dataset mine.csv needs label"),
        (["data.dataset={name='mine.csv', label='z'}"], "data.dataset: .*needed a column 'z', found x, y, site"),
        (["data.dataset={label='y'}"], "data.dataset.name must be a string, got None"),
        (["training.loss='ce'"], "loss 'ce' is unknown"),
        (["training.loss='math:sqrt'"], "must be a subclass of Tensor, or a function annotated to return one"),
        (["training.metrics=['f2']"], "metric 'f2' is unknown: choose from accuracy, auroc, f1, mae"),
        (["training.metrics=['f1', 'f1']"], "metrics must be different"),
        (["training.optimizer='adm'"], "optimizer 'adm' is unknown: did you mean 'adam'"),
        (["training.optimizer='adam'", "training.momentum=0.9"], "momentum is an option of the optimizer sgd"),
        (["training.local_epochs=1", "training.local_steps=2"], "takes the place of local_steps"),
        (["training.weighting='size'"], "training.weighting 'size' is unknown"),
    ],
)
def test_mistakes_are_named(file: Path, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment(file, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["attacks=[{name='backdoor', size=1}]"],
            "attack backdoor.*: Backdoor needs images .*shape .1,. and type float32",
        ),
        (["defenses=[{name='fat'}]"], "defense fat: AdversarialTraining needs images"),
        (["defenses=[{name='deepsight'}]"], "defense deepsight: .*random images with pixels in"),
        (["training.adversarial=0.1"], "training: AdversarialTraining needs images"),
        (["training.loss='mse'"], "training: this loss needs targets that are values, found classes"),
        (["training.batch_statistics=true", "model={name='small-cnn'}"], "model does not fit dataset mine.csv"),
    ],
)
def test_what_does_not_fit_the_data_is_found_before_the_first_round(
    file: Path, changes: list[str], message: str
) -> None:
    experiment = load_experiment(file, changes)
    with pytest.raises(ConfigError, match=message):
        dry_run(experiment, load_dataset(experiment))


def small_dataset() -> Dataset:
    inputs = torch.arange(40.0).view(-1, 1)
    return split_dataset("numbers", inputs, inputs[:, 0] / 40, clients=("a", "b"), owners=torch.arange(40) % 2)


def test_a_dataset_from_python(tmp_path: Path) -> None:
    """No file at all: a Dataset, and an experiment around it."""
    data = Data.of(small_dataset(), malicious=0.5)
    assert (data.clients, data.partition, data.dataset) == (2, ByClient(), "numbers")
    experiment = Experiment(
        "mine", data, (("name", "mlp"), ("hidden", 2)), Training(rounds=2, sampled=2, batch=4, evaluate_every=1),
        attacks=(Entry("sign flip", SignFlip()),),
    )  # fmt: skip
    run_all([Job(experiment, tmp_path / "run", "")], Execution(device="cpu"))
    run = read_run(tmp_path / "run")
    assert run.summary is not None
    assert run.header["clients"] == ["a", "b"]
    assert run.header["split"] == [[16], [16]]
    assert set(run.rounds[-1].client_metrics) == {"loss", "r2"}
    assert run.rounds[-1].accuracy is None


def judged(number: int, weights: list[float], **others: Any) -> RoundRecord:
    scores = {"Krum": tuple(1.0 - weight for weight in weights)}
    return RoundRecord(number, tuple(range(len(weights))), tuple(weights), scores=scores, **others)


def test_the_report_names_who_is_always_rejected() -> None:
    metrics = {"accuracy": (0.9, 0.25, 0.8), "loss": (0.1, 2.0, 0.2)}
    rounds = [judged(i, [1, 0, i % 2], malicious=(False, False, True)) for i in range(6)]
    rounds[-1] = replace(rounds[-1], accuracy=0.7, client_metrics=metrics)
    header = {"experiment": {"name": "x"}, "clients": ["A", "B", "C"], "split": [[4, 1], [0, 9], [5, 5]]}
    found = make_client_table([RunRecord(header, tuple(rounds))])
    assert found is not None
    assert found.headings == ("Client", "Was", "Samples", "Rejected", "Rounds judged", "Accuracy", "Loss")
    assert found.rows == (
        ("B (1)", "honest", "9", "100.0%", "6", "25.0%", "2"),
        ("C (2)", "malicious", "10", "50.0%", "6", "80.0%", "0.2"),
        ("A (0)", "honest", "5", "0.0%", "6", "90.0%", "0.1"),
    )
    assert "One honest client was rejected nearly always by run" in describe_results(
        group_runs([RunRecord(header, tuple(rounds))])
    )
    recalls = replace(rounds[-1], client_metrics={}, class_recalls=(1.0, 0.5))
    estimated = make_client_table([RunRecord(header, (*rounds[:-1], recalls))])
    assert estimated is not None
    assert [row[-1] for row in estimated.rows] == ["50.0%", "75.0%", "90.0%"]


def test_the_arena_takes_an_experiment_file(file: Path) -> None:
    choice = Choice(
        ["none", "median", "Multi-Krum", "DeepSight", "FLTrust"], ["none", "sign flip", "model replacement"], [0], 2
    )
    planned = plan([str(file)], [0.25], choice)
    labels = {(run.attacks[0].label, run.defenses[0].label) for run in planned.runs}
    assert labels == {(attack, defense) for attack in ("none", "sign flip") for defense in ("none", "median")}
    assert {run.name for run in planned.runs} == {"arena-mine-25"}
    left_out = [text.split(" is left out")[0] for text in planned.left_out]
    assert left_out == ["model replacement", "DeepSight", "Multi-Krum", "FLTrust"]  # needs five clients, data, pixels
    assert MOST_REJECTED in RANKED
