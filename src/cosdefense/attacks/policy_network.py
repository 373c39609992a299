"""The policy network of the learned attack: its observation, its actions, and its file format.

The file is safetensors and the network is evaluated with torch alone. Using a policy needs neither the library that
trained it nor pickle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..core import Layout
from ..ops import min_max

FORMAT = "cosdefense policy, version 1"
N_ACTIONS = 2  # the magnitude and the number of local steps


def head_size(layout: Layout) -> int:
    """How many parameters of the model a policy observes."""
    return sum(where.stop - where.start for where in _last_layer_slices(layout))


def observe(params: Float[Tensor, " d"], layout: Layout, n_malicious: int, sampled: int) -> Float[Tensor, " k"]:
    """Compute the observation: the last layer, then the share of malicious clients, both scaled to [−1, 1].

    A last layer whose values are all equal is observed as zeros. The result is always on the CPU.
    """
    head = torch.cat([params[where] for where in _last_layer_slices(layout)]).detach().cpu().double()
    scaled = 2 * min_max(head) - 1 if bool(head.max() > head.min()) else torch.zeros_like(head)
    share = 2 * min(n_malicious / sampled, 1.0) - 1
    return torch.cat([scaled, scaled.new_tensor([share])]).float()


def _last_layer_slices(layout: Layout) -> list[slice]:
    """The weights of the head, and its bias if it has one."""
    head = layout.require_head()
    bias = f"{head.rpartition('.')[0]}.bias".removeprefix(".")
    return [layout.slices[head], *([layout.slices[bias]] if bias in layout.trainable else [])]


@dataclass(frozen=True)
class ActionRanges:
    """The ranges of the two actions of a policy, which are numbers in [−1, 1].

    The defaults are the paper's, against Clipping-Median.

    Args:
        magnitude: The magnitude at action −1 and at action 1.
        steps: The number of local steps at −1 and at 1. Numbers between them are rounded down.
    """

    magnitude: tuple[float, float] = (0.1, 29.9)
    steps: tuple[int, int] = (1, 49)

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude[0] <= self.magnitude[1] < math.inf:
            raise ValueError(f"magnitude must be a range of numbers from 0 on, got {self.magnitude}")
        if not 1 <= self.steps[0] <= self.steps[1]:
            raise ValueError(f"steps must be a range of whole numbers from 1 on, got {self.steps}")

    def decode(self, action: Float[Tensor, " 2"]) -> tuple[float, int]:
        """Convert an action in [−1, 1]² to a magnitude and a number of local steps."""
        magnitude, steps = (
            (low + high) / 2 + (high - low) / 2 * min(max(value, -1.0), 1.0)
            for value, (low, high) in zip(action.tolist(), (self.magnitude, self.steps), strict=True)
        )
        return magnitude, math.floor(steps)


@dataclass(frozen=True, eq=False)
class Policy:
    """A network from observation to action: linear layers with ReLU between them and tanh after the last.

    Args:
        layers: The weights [out, in] and biases [out] of every layer, float32.
        actions: The ranges of the two actions.
        sampled: The number of clients per round in the federation where the policy was trained.
        history: How the policy was trained. It is only stored.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    actions: ActionRanges
    sampled: int
    history: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sampled < 1:
            raise ValueError(f"sampled must be at least 1, got {self.sampled}")
        if not self.layers:
            raise ValueError("a policy needs at least one layer, got none")
        sizes = [weight.shape[0] for weight, _ in self.layers]
        for (weight, _), size in zip(self.layers[1:], sizes[:-1], strict=True):
            if weight.shape[1] != size:
                raise ValueError(f"a policy's layers must fit each other: needed {size} columns, got {weight.shape[1]}")
        if sizes[-1] != N_ACTIONS:
            raise ValueError(f"a policy needs {N_ACTIONS} outputs, got {sizes[-1]}")
        if not all(bool(tensor.isfinite().all()) for layer in self.layers for tensor in layer):
            raise ValueError("a policy's weights must be finite, some are not")

    @property
    def n_observed(self) -> int:
        return self.layers[0][0].shape[1]

    def act(self, observation: Float[Tensor, " k"]) -> Float[Tensor, " 2"]:
        """Evaluate the network: two numbers in [−1, 1]."""
        *hidden, (weight, bias) = self.layers
        for inner, offset in hidden:
            observation = torch.relu(inner @ observation + offset)
        return torch.tanh(weight @ observation + bias)

    def decide(self, params: Float[Tensor, " d"], layout: Layout, n_malicious: int) -> tuple[float, int]:
        """Choose the magnitude and the number of local steps, given the global model and the number of attackers."""
        if head_size(layout) != self.n_observed - 1:
            raise ValueError(
                f"the policy was trained for a last layer of {self.n_observed - 1} numbers, "
                f"{layout.head!r} of this model has {head_size(layout)}"
            )
        return self.actions.decode(self.act(observe(params, layout, n_malicious, self.sampled)))

    def to_bytes(self) -> bytes:
        """Return the content of a policy file."""
        from safetensors.torch import save  # imported here to keep the import of the package fast

        tensors: dict[str, Tensor] = {}
        for number, (weight, bias) in enumerate(self.layers):
            tensors |= {f"{number}.weight": weight.contiguous(), f"{number}.bias": bias.contiguous()}
        metadata = {
            "format": FORMAT,
            "layers": len(self.layers),
            "magnitude": self.actions.magnitude,
            "steps": self.actions.steps,
            "sampled": self.sampled,
            "history": self.history,
        }
        # A single key: safetensors does not fix the order of several, and equal policies must give equal bytes.
        content: bytes = save(tensors, {"policy": json.dumps(metadata, sort_keys=True)})
        return content

    @classmethod
    def from_bytes(cls, content: bytes) -> Policy:
        """Read the content of a policy file. A ValueError says what is wrong with it."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(content)
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"is not a safetensors file ({error})") from error
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # validated by load()
        try:
            metadata = json.loads(header["__metadata__"]["policy"])
            if metadata["format"] != FORMAT:
                raise ValueError(f"needs the format {FORMAT!r}, got {metadata['format']!r}")
            layers = tuple((tensors[f"{i}.weight"], tensors[f"{i}.bias"]) for i in range(metadata["layers"]))
            magnitude, steps = map(float, metadata["magnitude"]), map(int, metadata["steps"])
            actions = ActionRanges(tuple(magnitude), tuple(steps))  # type: ignore[arg-type]
            _check_shapes(layers)
            return cls(layers, actions, int(metadata["sampled"]), metadata["history"])
        except KeyError as error:
            raise ValueError(f"is not a policy: {error} is missing") from error
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"is not a policy: {error}") from error


def _check_shapes(layers: tuple[tuple[Tensor, Tensor], ...]) -> None:
    for number, (weight, bias) in enumerate(layers):
        if weight.ndim != 2 or bias.shape != weight.shape[:1] or {weight.dtype, bias.dtype} != {torch.float32}:
            raise ValueError(
                f"layer {number} needs a float32 matrix and a bias of as many rows, "
                f"got {weight.dtype} {tuple(weight.shape)} and {bias.dtype} {tuple(bias.shape)}"
            )


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
