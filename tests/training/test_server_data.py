"""Data at the server: held out of the training set, trained on as clients train."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from cosdefense import MissingTrustedData
from cosdefense.catalog.options import ConfigError
from cosdefense.data import load
from cosdefense.runs.data_section import Data
from cosdefense.runs.experiment import Experiment, Training
from cosdefense.runs.prepare import build_world
from cosdefense.simulation.world import World
from cosdefense.training.executor import train_clients
from cosdefense.training.server_data import ServerData
from cosdefense.training.task import Task


def world_of(trusted: int = 40, shared: int = 5) -> tuple[World, ServerData]:
    cell = Experiment(
        "held-out",
        data=Data(clients=20, trusted=trusted, shared=shared),
        training=Training(batch=4, local_steps=2, lr=0.1),
    )
    world = build_world(cell, load("digits"), torch.device("cpu"))
    assert isinstance(world.trusted_data, ServerData)
    return world, world.trusted_data


def test_the_server_holds_what_no_client_has() -> None:
    world, server = world_of()
    owned = torch.cat(list(world.partition)).tolist()
    held = server.held.tolist()
    assert len(set(held)) == 40
    assert not set(held) & set(owned)
    assert set(held) | set(owned) == set(range(len(world.targets)))  # rows of the training set, all of them


def test_clients_share_some_of_their_own() -> None:
    world, server = world_of()
    for client, rows in server.shared.items():
        assert len(set(rows.tolist())) == 5
        assert set(rows.tolist()) <= set(world.partition[client].tolist())


def test_without_trusted_data_nothing_changes() -> None:
    plain, both = Data(clients=20), Data(clients=20, shared=5)
    worlds = [build_world(Experiment("x", data=data), load("digits"), torch.device("cpu")) for data in (plain, both)]
    with pytest.raises(MissingTrustedData, match=r"data\.trusted = 100"):
        worlds[0].trusted_data.update(worlds[0].task.initial(), seed=0)  # type: ignore[union-attr]
    for one, other in zip(worlds[0].partition, worlds[1].partition, strict=True):
        assert torch.equal(one, other)


def test_the_update_is_that_of_a_client_with_this_data() -> None:
    world, server = world_of(trusted=8)  # two steps of four: one pass over all eight
    params = world.task.initial()
    found = server.update(params, seed=3)
    assert torch.equal(found, server.update(params, seed=3))
    assert not torch.equal(found, server.update(params, seed=4))
    everything = replace(server, batch=8, steps=1)
    rows = server.held
    images, labels = world.inputs[rows][None, None].float() / 255, world.targets[rows][None, None]
    expected = train_clients(world.task, world.trainer, params, images, labels)[0]
    assert torch.allclose(everything.update(params, seed=0), expected, atol=1e-6)


def test_dropout_at_the_server_is_seeded() -> None:
    _, server = world_of()
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    server = replace(server, task=Task.of(model))
    params = server.task.initial()
    torch.manual_seed(1)
    found = server.update(params, seed=3), server.guides(torch.tensor([2]), params, seed=3)
    draw = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(draw, torch.rand(1))  # and it leaves the global stream alone
    torch.manual_seed(2)
    assert torch.equal(found[0], server.update(params, seed=3))
    assert torch.equal(found[1], server.guides(torch.tensor([2]), params, seed=3))


def test_guides_are_per_client_and_do_not_depend_on_company() -> None:
    world, server = world_of()
    params = world.task.initial()
    three = server.guides(torch.tensor([4, 7, 2]), params, seed=1)
    alone = server.guides(torch.tensor([7]), params, seed=1)
    assert torch.allclose(three[1], alone[0], atol=1e-6)
    assert not torch.allclose(three[0], three[1], atol=1e-4)


def test_what_is_missing_is_named() -> None:
    world, server = world_of(trusted=0)
    with pytest.raises(MissingTrustedData, match=r"data\.trusted = 100"):
        server.update(world.task.initial(), 0)
    world, server = world_of(shared=0)
    with pytest.raises(MissingTrustedData, match=r"data\.shared = 10.*client 7 shared none"):
        server.guides(torch.tensor([7]), world.task.initial(), 0)
    with pytest.raises(ConfigError, match="must leave some of the 1437 training samples"):
        world_of(trusted=1437)
    with pytest.raises(ValueError, match="trusted must be at least 0, got -1"):
        Data(trusted=-1)
