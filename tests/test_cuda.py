"""On a GPU: the same contract, the same verdicts as on a CPU, and the same bits twice."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cosdefense.catalog.registry import AGGREGATORS, ATTACKS, FILTERS
from cosdefense.core import State, derive, generator, pack, unpack
from cosdefense.data import load
from cosdefense.runs.device import choose_device, reproducible
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.experiment_file import load as load_experiment
from cosdefense.runs.prepare import build_world
from cosdefense.simulation.loop import Round, Snapshot, simulate
from cosdefense.simulation.profiling import Profiler
from cosdefense.simulation.world import World
from cosdefense.testing.contract import LAYOUT, check_aggregator, check_attack, check_filter
from cosdefense.training.executor import to_channels_last, train_batched, train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import paper_cnn, resnet18
from cosdefense.training.stacked_clients import can_stack
from cosdefense.training.task import Task
from interrupted_runs import rounds_run
from policies import random_policy, save_policy
from promises import ADDS_NOISE, LIMITS_STEPS, MAY_REJECT_IDENTICAL, SHORTER, SHORTER_ATTACKS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here")


@pytest.fixture(autouse=True)
def same_bits() -> Iterator[None]:
    """As a run sets it."""
    with reproducible():
        yield


MNIST = Path(__file__).parents[1] / "experiments" / "mnist-ipm-300.toml"


@pytest.mark.parametrize("name", FILTERS)
def test_filters_keep_the_contract(name: str) -> None:
    part = FILTERS[name](**SHORTER.get(name, {}))
    check_filter(part, device="cuda", may_reject_identical=isinstance(part, MAY_REJECT_IDENTICAL))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregators_keep_the_contract(name: str) -> None:
    part = AGGREGATORS[name]()
    check_aggregator(
        part, device="cuda", adds_noise=isinstance(part, ADDS_NOISE), limits_steps=isinstance(part, LIMITS_STEPS)
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_keep_the_contract(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(SHORTER_ATTACKS.get(name, {}))
    if name == "learned-policy":
        options["path"] = save_policy(random_policy(LAYOUT), tmp_path)
    check_attack(ATTACKS[name](**options), device="cuda")


def test_what_is_as_long_as_an_update_is_drawn_on_the_gpu_and_repeats() -> None:
    device = torch.device("cuda")
    rng = generator(0, "noise", 3, device=device)
    assert rng.device.type == "cuda"
    assert rng.initial_seed() == derive(0, "noise", 3)
    drawn = [
        torch.randn(10**6, generator=generator(0, "noise", client, device=device), device=device)
        for client in (3, 3, 4)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert abs(float(drawn[0].mean())) < 0.005  # five standard errors
    assert abs(float(drawn[0].std()) - 1) < 0.005


def test_phases_are_timed_by_the_gpu_and_do_not_wait_for_it() -> None:
    profiler, matrix = Profiler(torch.device("cuda")), torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    with profiler.measure("busy"):
        for _ in range(100):
            torch.mm(matrix, matrix)
    with profiler.measure("idle"):
        pass
    seconds = profiler.seconds
    elapsed = time.perf_counter() - start
    assert 0.005 < seconds["busy"] <= 1.01 * elapsed
    assert seconds["idle"] < 0.1 * seconds["busy"]
    assert profiler.peak_memory["idle"] == torch.cuda.max_memory_allocated()


def cell(defense: str, local_steps: int = 1) -> Experiment:
    changes = [
        f'defenses=[{{name="{defense}"}}]', "schedule={attack_start=5, defense_start=5}", "seeds=[0]",
        "data.trusted=100", "data.shared=10", f"training.local_steps={local_steps}",
    ]  # fmt: skip
    return load_experiment(MNIST, changes)


def rounds_of(world: World, experiment: Experiment, rounds: int, resume: Snapshot | None = None) -> Iterator[Round]:
    (attack,), (defense,), training = experiment.attacks, experiment.defenses, experiment.training
    return simulate(
        world, attack.part, defense.part, rounds=rounds, sampled=training.sampled, batch=training.batch,
        local_steps=training.local_steps, seed=0, schedule=experiment.schedule, resume=resume,
    )  # fmt: skip


def moved(state: State, like: State) -> State:
    """What a defense remembers, on the GPU."""
    packed, tensors = pack(state)
    return unpack(packed, {name: tensor.cuda() for name, tensor in tensors.items()}, like)


RULES = [
    "cosdefense", "krum", "clipping-median", "trimmed-mean", "fltrust", "bygars", "bygars++", "sageflow", "diversefl",
    "rffl", "foolsgold", "pca-clustering", "fat", "factions", "opposed-clusters",
]  # fmt: skip


@pytest.mark.parametrize("defense", RULES)
def test_the_same_verdicts_as_on_the_cpu(defense: str, real_data: Path) -> None:
    """MNIST, the paper's round: every round is judged on both, starting from the same model and memory."""
    data, experiment = load("mnist", real_data), cell(defense)
    here = build_world(experiment, data, torch.device("cpu"))
    there = build_world(experiment, data, choose_device("cuda"))
    rule = experiment.defenses[0].part
    before, memory = here.task.initial(), rule.init()
    for round_ in rounds_of(here, experiment, 15):
        start = Snapshot(round_.number, before.cuda(), moved(memory, rule.init()), round_.after.attack_state)
        (twin,) = rounds_of(there, experiment, round_.number + 1, start)
        assert torch.equal(round_.clients, twin.clients.cpu())
        weights = round_.verdict.weights, twin.verdict.weights.cpu()
        assert torch.equal(weights[0] == 0, weights[1] == 0), f"round {round_.number}"
        assert torch.allclose(*weights, atol=1e-3), f"round {round_.number}"
        assert torch.allclose(round_.after.params, twin.after.params.cpu(), atol=1e-4)
        before, memory = round_.after.params, round_.after.defense_state


@pytest.mark.parametrize("defense", ["cosdefense", "fl-wbc", "foolsgold"])
def test_the_same_bits_twice(defense: str, real_data: Path) -> None:
    data, experiment = load("mnist", real_data), cell(defense, local_steps=2)
    world = build_world(experiment, data, choose_device("cuda"))
    one, again = ([r.after.params for r in rounds_of(world, experiment, 10)][-1] for _ in range(2))
    assert torch.equal(one, again)


def test_stopped_and_resumed(tmp_path: Path) -> None:
    table = {
        "name": "small", "data": {"dataset": "digits", "clients": 20}, "model": {"name": "small-cnn"},
        "training": {"rounds": 8, "sampled": 5, "batch": 4}, "attacks": [{"name": "noise"}],
        "defenses": [{"name": "cosdefense"}],
    }  # fmt: skip
    experiment, data, device = from_table(table), load("digits"), choose_device("cuda")
    assert len(rounds_run(experiment, tmp_path / "whole", data, device)) == 8
    assert len(rounds_run(experiment, tmp_path / "parts", data, device, stop_after=3)) == 3
    assert len(rounds_run(experiment, tmp_path / "parts", data, device)) == 5
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors")["params"] for name in ("whole", "parts"))
    assert torch.equal(whole, parts)


def test_batch_norm_on_both() -> None:
    """ResNet-18 with its statistics, one round each."""
    digits = load("digits")
    images = digits.train_inputs.repeat(1, 3, 4, 4)  # digits blown up to 3 × 32 × 32: any data will do
    tests = digits.test_inputs.repeat(1, 3, 4, 4)
    data = replace(digits, train_inputs=images, test_inputs=tests, mean=(0.3,) * 3, std=(0.4,) * 3)
    changes = ['model={name="resnet18"}', "training.batch=8", "training.sampled=3"]
    experiment = load_experiment(MNIST, changes)
    experiment = next(experiment.cells())
    found = []
    for device in ("cpu", "cuda"):
        world = build_world(experiment, data, choose_device(device))
        (round_,) = rounds_of_resnet(world, experiment)
        found.append(round_.after.params.cpu())
    # One step on eight images: gradients differ by rounding, amplified by eighteen layers.
    assert torch.allclose(found[0], found[1], atol=1e-3)
    statistics = slice(world.task.layout.n_trainable, None)
    assert torch.allclose(found[0][statistics], found[1][statistics], atol=1e-4)


def rounds_of_resnet(world: World, experiment: Experiment) -> list[Round]:
    (attack,), (defense,) = experiment.attacks, experiment.defenses
    return list(simulate(world, attack.part, defense.part, rounds=1, sampled=3, batch=8, seed=0))


def resnet_task() -> Task:
    torch.manual_seed(0)
    return Task.of(resnet18((3, 32, 32), 10).cuda(), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.mark.parametrize("steps", [1, 3])
def test_replayed_training_equals_plain_training(steps: int) -> None:
    """Statistics, momentum, weight decay; several rounds from different models; more and fewer clients."""
    task, trainer = resnet_task(), LocalSGD(lr=0.05, momentum=0.9, weight_decay=1e-3)
    params = task.initial()
    rng = torch.Generator("cuda").manual_seed(1)
    for n in (6, 2, 7):
        images = torch.rand(n, steps, 8, 3, 32, 32, device="cuda", generator=rng)
        labels = torch.randint(0, 10, (n, steps, 8), device="cuda", generator=rng)
        updates = train_clients(task, trainer, params, images, labels)
        plain = torch.stack([trainer(task, params, to_channels_last(images[i], 2), labels[i]) for i in range(n)])
        assert torch.equal(updates, plain)
        if steps == 1:  # more of them amplify the rounding by which two kernels differ
            assert torch.allclose(updates, train_batched(task, trainer, params, images, labels), atol=2e-3)
        params = params + updates.mean(dim=0)


def test_stacked_clients_train_as_each_does_alone_and_repeat_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Different numbers of clients, in several parts, from different models and by different trainers."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # both ways in float32: TF32 has 10 bits
    torch.manual_seed(0)
    task = Task.of(paper_cnn((1, 28, 28), 10).cuda(), mean=(0.13,), std=(0.31,))
    params = task.initial()
    for n, trainer in ((3, LocalSGD(0.1)), (7, LocalSGD(0.1)), (3, LocalSGD(0.1, ascend=True)), (9, LocalSGD(0.1))):
        images, labels = torch.rand(n, 1, 600, 1, 28, 28, device="cuda"), torch.randint(0, 10, (n, 1, 600)).cuda()
        assert can_stack(task, trainer, 1)
        found = [train_clients(task, trainer, params, images, labels) for _ in range(2)]
        assert torch.equal(found[0], found[1])
        differences = []
        for update, batch, truth in zip(found[0], to_channels_last(images, 3), labels, strict=True):
            plain = trainer(task, params, batch, truth)
            differences.append(float((update - plain).norm() / plain.norm()))
        # Of 600 images one may have two pixels, or a pixel and zero, that differ by rounding alone. Max-pooling and
        # ReLU then choose differently, by which one client in three differs from float64 by up to 1.5e-3, both ways.
        assert min(differences) <= 2e-5
        assert max(differences) <= 5e-3
        params = params + found[0].mean(dim=0)


def test_runs_of_one_model_share_recordings_and_not_their_parameters() -> None:
    table = {"name": "small", "data": {"dataset": "digits", "clients": 20}, "model": {"name": "small-cnn"}}
    digits, device = load("digits"), torch.device("cuda")
    first, second = (build_world(from_table({**table, "seeds": [seed]}), digits, device).task for seed in (0, 1))
    assert second.twin is (first.twin or first)
    assert not torch.equal(first.initial(), second.initial())
    images, labels = torch.rand(4, 1, 8, 1, 8, 8, device="cuda"), torch.randint(0, 10, (4, 1, 8)).cuda()
    alone = replace(second, twin=None).copy_for_thread()
    found = [train_clients(task, LocalSGD(), second.initial(), images, labels) for task in (first, second, alone)]
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[1], found[2])


def test_bfloat16_is_replayed_too() -> None:
    torch.manual_seed(0)
    model = resnet18((3, 32, 32), 10).cuda()
    exact, rounded = Task.of(model), Task.of(model, bfloat16=True)
    images = torch.rand(3, 1, 16, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (3, 1, 16), device="cuda")
    found = train_clients(rounded, LocalSGD(), rounded.initial(), images, labels)
    for update, batch, truth in zip(found, to_channels_last(images, 3), labels, strict=True):
        plain = LocalSGD()(rounded, rounded.initial(), batch, truth)
        assert float((update - plain).norm()) <= 1e-3 * float(plain.norm())
    full = train_clients(exact, LocalSGD(), exact.initial(), images, labels)
    assert 1e-3 < float((found - full).norm() / full.norm()) < 0.2


def test_recordings_are_reused_and_released_with_their_task() -> None:
    """Their memory shows both."""
    choose_device("cuda")
    gc.collect()
    before = memory_of_graphs()
    task = resnet_task()
    images, labels = torch.rand(7, 1, 64, 3, 32, 32, device="cuda"), torch.zeros(7, 1, 64, dtype=torch.long).cuda()
    reserved = []
    for _ in range(3):
        train_clients(task, LocalSGD(), task.initial(), images, labels)
        torch.cuda.synchronize()
        reserved.append(memory_of_graphs())
    assert reserved[2] == reserved[1] > before
    del task, images, labels
    gc.collect()
    assert memory_of_graphs() == before


def memory_of_graphs() -> int:
    """Bytes that recorded graphs hold. Libraries keep workspaces outside of them, with the blocks they lie in."""
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(found["total_size"] for found in segments if found["segment_pool_id"] != (0, 0))


def test_dropout_differs_between_clients_and_repeats_with_the_seed() -> None:
    layers = [nn.Flatten(), nn.Linear(64, 256), nn.Dropout(0.5), nn.Linear(256, 10)]
    task, trainer = Task.of(nn.Sequential(*layers).cuda()), LocalSGD()
    images = torch.rand(1, 1, 4, 1, 8, 8, device="cuda").expand(3, -1, -1, -1, -1, -1)
    labels = torch.zeros(3, 1, 4, dtype=torch.long, device="cuda")
    found = []
    for _ in range(3):  # the first detects that training draws random numbers
        torch.cuda.manual_seed(5)
        found.append(train_clients(task, trainer, task.initial(), images, labels))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
    assert not torch.equal(found[0][0], found[0][1])
