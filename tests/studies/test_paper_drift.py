"""Clients that train alone: plain training, plain cosines, and the same bits after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from cosdefense import Layout
from cosdefense.catalog.options import ConfigError
from cosdefense.core import generator
from cosdefense.data import load
from cosdefense.runs.experiment import Experiment, from_table
from cosdefense.runs.prepare import build_model, build_world
from cosdefense.runs.records import RoundRecord, read_run
from cosdefense.runs.single_run import run
from cosdefense.studies.paper.drift import alone, layer_likeness

CPU = torch.device("cpu")
LAYOUT = Layout((("first", (2, 3)), ("bias", (3,)), ("last", (2, 2)), ("statistics", (2, 2))), "last", 13)


def cell(clients: int = 10, **training: object) -> Experiment:
    table = {
        "name": "alone",
        "data": {"dataset": "digits", "clients": clients, "malicious": 0.0, "partition": {"name": "iid"}},
        "model": {"name": "mlp", "hidden": 8},
        "training": {"rounds": 4, "sampled": 1, "batch": 5, "local_steps": 3, "lr": 0.1, **training},
    }
    return from_table(table)


def test_likeness_is_the_mean_cosine_with_the_others() -> None:
    models = np.random.default_rng(0).normal(size=(4, 17)) + 0.5
    found = dict(layer_likeness(torch.tensor(models), LAYOUT))
    assert list(found) == ["first", "last"]  # matrices that are trained, from the input to the output
    for name, columns in {"first": slice(0, 6), "last": slice(9, 13)}.items():
        for i in range(4):
            cosines = [
                np.dot(models[i, columns], models[j, columns])
                / (np.linalg.norm(models[i, columns]) * np.linalg.norm(models[j, columns]))
                for j in range(4)
                if j != i
            ]
            assert float(found[name][i]) == pytest.approx(sum(cosines) / 3, abs=1e-12)


def test_likeness_by_hand() -> None:
    """Two clients agree, the third is at right angles to them, the fourth is all zero."""
    models = torch.zeros(4, 17)
    models[:, 0] = torch.tensor([1.0, 5.0, 0.0, 0.0])
    models[2, 1] = 2.0
    likeness = dict(layer_likeness(models, LAYOUT))["first"]
    assert likeness.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 0])


def test_every_client_trains_as_a_plain_module_would() -> None:
    experiment, data = cell(clients=3, momentum=0.9, weight_decay=0.01), load("digits")
    world = build_world(experiment, data, CPU)
    played = list(alone(experiment, world, data, None))
    assert [record.round for record, _ in played] == [0, 1, 2, 3]
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    for client in range(3):
        model = build_model(experiment, data)
        for number, (_, after) in enumerate(played):
            images, labels = world.batches(torch.arange(3), 3, 5, generator(0, "batches", number))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
            for step in range(3):
                optimizer.zero_grad()
                loss = cross_entropy(model((images[client, step] - mean) / std), labels[client, step])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            plain = nn.utils.parameters_to_vector(model.parameters()).detach()
            assert torch.allclose(after.params.view(3, -1)[client], plain, atol=1e-5)


def test_what_is_recorded_is_the_likeness_after_the_round() -> None:
    experiment, data = cell(), load("digits")
    world = build_world(experiment, data, CPU)
    start = world.task.initial()
    for record, after in alone(experiment, world, data, None):
        models = after.params.view(10, -1)
        compared = {"weights": models.double().numpy(), "changes": (models - start).double().numpy()}
        assert record.clients == tuple(range(10))
        names = [(what, name) for what in compared for name in ("1.weight", "3.weight")]
        assert list(record.scores) == [f"{what}: {name}" for what, name in names]
        for what, name in names:
            rows = compared[what][:, world.task.layout.slices[name]]
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            others = ((rows @ rows.T).sum(axis=1) - 1) / 9
            assert record.scores[f"{what}: {name}"] == pytest.approx(others.tolist(), abs=1e-9)


def decided(folder: Path) -> tuple[list[RoundRecord], bytes]:
    lines = [{**record.to_json(), "seconds": {}} for record in read_run(folder).rounds]
    params = load_file(folder / "checkpoint.safetensors")["params"]
    return [RoundRecord.from_json(line) for line in lines], params.numpy().tobytes()


@pytest.mark.parametrize("stop", [1, 3])
def test_stopping_and_going_on(tmp_path: Path, stop: int) -> None:
    experiment, data = cell(), load("digits")
    assert len(list(run(experiment, tmp_path / "whole", data, CPU, play=alone))) == 4
    first = run(experiment, tmp_path / "parts", data, CPU, play=alone)
    for _ in range(stop):
        next(first)
    first.close()
    rest = list(run(experiment, tmp_path / "parts", data, CPU, play=alone))
    assert [record.round for record in rest] == list(range(stop, 4))
    assert decided(tmp_path / "parts") == decided(tmp_path / "whole")


def test_one_client_has_nobody_to_be_compared_with() -> None:
    experiment, data = cell(clients=1), load("digits")
    with pytest.raises(ConfigError, match=r"data\.clients must be at least 2 .*, got 1"):
        next(alone(experiment, build_world(experiment, data, CPU), data, None))
