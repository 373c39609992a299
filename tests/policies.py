"""Policies for tests, random or constant, and how to save them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from cosdefense import Layout
from cosdefense.attacks.policy_network import ActionRanges, Policy, head_size


def random_policy(
    layout: Layout,
    hidden: tuple[int, ...] = (5, 4),
    seed: int = 0,
    sampled: int = 10,
    actions: ActionRanges = ActionRanges(),
) -> Policy:
    """A policy with random weights: its actions depend on the model."""
    rng = torch.Generator().manual_seed(seed)
    sizes = (head_size(layout) + 1, *hidden, 2)
    layers = tuple(
        (torch.randn(out, inside, generator=rng) / inside**0.5, torch.randn(out, generator=rng) / 2)
        for inside, out in pairwise(sizes)
    )
    return Policy(layers, actions, sampled)


def constant_policy(
    layout: Layout, action: tuple[float, float] = (0.0, 0.0), actions: ActionRanges = ActionRanges()
) -> Policy:
    """A policy that always chooses the same action."""
    bias: Tensor = torch.atanh(torch.tensor(action))
    return Policy(((torch.zeros(2, head_size(layout) + 1), bias),), actions, sampled=10)


def save_policy(policy: Policy, folder: Path, name: str = "policy.safetensors") -> str:
    """Save the policy and return the path of its file."""
    (folder / name).write_bytes(policy.to_bytes())
    return str(folder / name)
