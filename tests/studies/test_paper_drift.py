"""Clients that train without averaging: plain training, plain cosines, and the same bits after an interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cosdefense import Layout
from cosdefense.catalog.options import ConfigError
from cosdefense.core import generator
from cosdefense.data import load
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.prepare import build_model, build_world
from cosdefense.studies.paper.drift import (
    PACK,
    RECORD,
    layer_similarities,
    measure_drift,
    read_drift,
    run_drift,
    write_drift,
)

CPU = torch.device("cpu")
LAYOUT = Layout((("first", (2, 3)), ("bias", (3,)), ("last", (2, 2)), ("statistics", (2, 2))), "last", 13)


def experiment_of(clients: int = 10, seed: int = 0, **training: object) -> Experiment:
    table = {
        "name": "drift",
        "seeds": [seed],
        "data": {"dataset": "digits", "clients": clients, "malicious": 0.0, "partition": {"name": "iid"}},
        "model": {"name": "mlp", "hidden": 8},
        "training": {"rounds": 4, "sampled": 1, "batch": 5, "local_steps": 3, "lr": 0.1, **training},
    }
    return from_table(table)


def test_similarity_is_the_mean_cosine_with_the_others() -> None:
    models = np.random.default_rng(0).normal(size=(4, 17)) + 0.5
    similarities = layer_similarities(torch.tensor(models), LAYOUT)
    assert list(similarities) == ["first", "last"]  # matrices that are trained, from the input to the output
    for name, columns in {"first": slice(0, 6), "last": slice(9, 13)}.items():
        for i in range(4):
            cosines = [
                np.dot(models[i, columns], models[j, columns])
                / (np.linalg.norm(models[i, columns]) * np.linalg.norm(models[j, columns]))
                for j in range(4)
                if j != i
            ]
            assert similarities[name][i] == pytest.approx(sum(cosines) / 3, abs=1e-6)


def test_similarity_by_hand() -> None:
    """Two clients agree, the third is at right angles to them, the fourth is all zero."""
    models = torch.zeros(4, 17)
    models[:, 0] = torch.tensor([1.0, 5.0, 0.0, 0.0])
    models[2, 1] = 2.0
    assert layer_similarities(models, LAYOUT)["first"] == pytest.approx([1 / 3, 1 / 3, 0, 0], abs=1e-6)


def test_every_client_trains_as_a_plain_module_would() -> None:
    experiment, data = experiment_of(clients=3, momentum=0.9, weight_decay=0.01), load("digits")
    world = build_world(experiment, data, CPU)
    measured = list(measure_drift(experiment, world, world.task.initial().repeat(3, 1)))
    assert [measurement.iteration for measurement, _ in measured] == [3, 6, 9, 12]
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    for client in range(3):
        model = build_model(experiment, data)
        for number, (_, models) in enumerate(measured):
            images, labels = world.draw_batches(torch.arange(3), 3, 5, generator(0, "batches", number))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
            for step in range(3):
                optimizer.zero_grad()
                loss = cross_entropy(model((images[client, step] - mean) / std), labels[client, step])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            plain = nn.utils.parameters_to_vector(model.parameters()).detach()
            assert torch.allclose(models[client], plain, atol=1e-5)


def test_what_is_recorded_is_the_similarity_after_the_iterations() -> None:
    experiment, data = experiment_of(), load("digits")
    world = build_world(experiment, data, CPU)
    start = world.task.initial()
    for measurement, models in measure_drift(experiment, world, start.repeat(10, 1)):
        for recorded, rows in ((measurement.weights, models), (measurement.changes, models - start)):
            assert list(recorded) == ["1.weight", "3.weight"]
            for name, values in recorded.items():
                layer = rows.double().numpy()[:, world.task.layout.slices[name]]
                layer = layer / np.linalg.norm(layer, axis=1, keepdims=True)
                others = ((layer @ layer.T).sum(axis=1) - 1) / 9
                assert values == pytest.approx(others.tolist(), abs=1e-6)


class Stop(Exception):
    """An interruption."""


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_run_is_resumed_with_the_same_bits(tmp_path: Path, stop: int, seconds: float) -> None:
    experiment, data = experiment_of(), load("digits")
    whole = run_drift(experiment, tmp_path / "whole", data, CPU)
    counted: list[int] = []

    def interrupt(n_measurements: int) -> None:
        counted.append(n_measurements)
        if n_measurements == stop:
            raise Stop

    with pytest.raises(Stop):
        run_drift(experiment, tmp_path / "parts", data, CPU, on_measurement=interrupt, checkpoint_seconds=seconds)
    stop = 0
    parts = run_drift(experiment, tmp_path / "parts", data, CPU, on_measurement=interrupt)
    assert counted == [1, 2, 3, 4]
    assert parts == whole
    assert (tmp_path / "parts" / RECORD).read_bytes() == (tmp_path / "whole" / RECORD).read_bytes()
    assert run_drift(experiment, tmp_path / "parts", data, CPU, on_measurement=counted.append) == whole
    assert counted == [1, 2, 3, 4]  # a finished run is only read


def test_finished_runs_are_read_from_folders_and_from_a_pack(tmp_path: Path) -> None:
    planned, data = [experiment_of(seed=seed) for seed in (0, 1, 2)], load("digits")
    runs = [run_drift(run, run.folder(tmp_path / "runs"), data, CPU, notes={"commit": "x"}) for run in planned[:2]]
    assert read_drift(planned, tmp_path / "runs") == runs
    write_drift(tmp_path / "published" / PACK, runs)
    assert read_drift(planned, tmp_path / "published") == runs
    assert [run.header["commit"] for run in runs] == ["x", "x"]
    assert read_drift(planned, tmp_path) == []


def test_one_client_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.clients must be at least 2 .*, got 1"):
        run_drift(experiment_of(clients=1), tmp_path, load("digits"), CPU)
