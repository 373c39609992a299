"""A task computes what the module itself would, and never touches the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cosdefense.training.fast_convolution import FastConv2d
from cosdefense.training.task import Task


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36 * 4, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(6, 2, 8, 8, generator=rng), torch.randint(0, 3, (6,), generator=rng)


def test_logits_and_loss_in_evaluation_mode() -> None:
    model, (images, labels) = network(), batch()
    task = Task.of(model, mean=(0.5, 0.4), std=(0.2, 0.3))
    normalized = (images - torch.tensor([0.5, 0.4]).view(1, 2, 1, 1)) / torch.tensor([0.2, 0.3]).view(1, 2, 1, 1)
    expected = model.eval()(normalized)
    assert torch.allclose(task.logits(task.initial(), images), expected)
    assert torch.allclose(task.loss(task.initial(), images, labels), cross_entropy(expected, labels))


def test_gradient_and_refreshed_buffers() -> None:
    model, (images, labels) = network(), batch()
    task = Task.of(model)
    start = task.initial()
    gradient, refreshed = task.gradient(start, images, labels)
    model.train()
    slopes = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
    named = task.layout.unflatten(gradient)
    for (name, _), slope in zip(model.named_parameters(), slopes, strict=True):
        assert torch.allclose(named[name], slope, atol=1e-6)
    assert bool((named["1.running_mean"] == 0).all())
    after = task.layout.unflatten(refreshed)
    assert torch.allclose(after["1.running_mean"], model.get_buffer("1.running_mean"))
    assert torch.allclose(after["1.running_var"], model.get_buffer("1.running_var"))
    assert torch.equal(after["0.weight"], model.get_parameter("0.weight"))


@pytest.mark.parametrize("settings", [{}, {"bfloat16": True}, {"fast_convolutions": True}], ids=str)
def test_torch_func_gives_the_same_bits(settings: dict[str, Any]) -> None:
    """As in vmap. A model with a parameter that takes no part has a gradient of zero there."""
    model, (images, labels) = network(), batch()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    task = Task.of(model, mean=(0.5, 0.4), std=(0.2, 0.3), **settings)
    ours, functional = (form.gradient(task.initial(), images, labels) for form in (task, task.functional_form))
    for one, other in zip(ours, functional, strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
    assert task.layout.unflatten(ours[0])["unused"].tolist() == [0, 0]


def test_bfloat16_rounds_the_gradient_and_nothing_else() -> None:
    model, (images, labels) = network(), batch()
    exact, rounded = Task.of(model), Task.of(model, bfloat16=True)
    start = exact.initial()
    (gradient, refreshed), (coarse, about) = (task.gradient(start, images, labels) for task in (exact, rounded))
    assert coarse.dtype == torch.float32
    assert 1e-4 < float((coarse - gradient).norm() / gradient.norm()) < 3e-2  # eight bits of every activation
    weights = slice(0, exact.layout.n_trainable)
    assert torch.equal(about[weights], start[weights])
    assert torch.allclose(about, refreshed, atol=1e-2)
    assert torch.equal(exact.logits(start, images), rounded.logits(start, images))


def test_logits_in_training_mode() -> None:
    """As the module itself would answer that nobody told to evaluate; its statistics play no part."""
    model, (images, _) = network(), batch()
    task = Task.of(model, mean=(0.5, 0.4), std=(0.2, 0.3))
    normalized = (images - torch.tensor([0.5, 0.4]).view(1, 2, 1, 1)) / torch.tensor([0.2, 0.3]).view(1, 2, 1, 1)
    with torch.no_grad():
        expected = model.train()(normalized)
        found = task.logits_with_batch_statistics(task.initial(), images)
        spoiled = task.initial()
        spoiled[task.layout.slices["1.running_mean"]] = 100.0
        assert torch.equal(task.logits_with_batch_statistics(spoiled, images), found)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, task.logits(task.initial(), images), atol=1e-2)


def test_nothing_is_written() -> None:
    model, (images, labels) = network(), batch()
    task = Task.of(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start = task.initial()
    kept = start.clone()
    task.gradient(start, images, labels)
    task.logits(start, images)
    task.logits_with_batch_statistics(start, images)
    assert torch.equal(start, kept)
    for skeleton in (model, task.training_model, task.evaluation_model):
        for name, tensor in skeleton.state_dict().items():
            assert torch.equal(tensor, before[name])


def test_convolutions_are_replaced_only_on_request_and_never_in_the_given_module() -> None:
    model = network()
    for fast in (False, True):
        task = Task.of(model, fast_convolutions=fast)
        assert {type(copied[0]) is FastConv2d for copied in (task.training_model, task.evaluation_model)} == {fast}  # type: ignore[index]
        assert type(model[0]) is nn.Conv2d  # type: ignore[index]


def test_a_twin_has_modules_of_its_own_around_the_same_tensors() -> None:
    task = Task.of(network())
    twin = task.copy_for_thread()
    for own, others in ((task.training_model, twin.training_model), (task.evaluation_model, twin.evaluation_model)):
        assert not {id(module) for module in own.modules()} & {id(module) for module in others.modules()}
        assert own.training == others.training
        tensors, same = own.state_dict(keep_vars=True), others.state_dict(keep_vars=True)
        assert tensors.keys() == same.keys()
        assert all(tensors[name] is same[name] for name in tensors)
