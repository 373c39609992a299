"""Where each named tensor of a model is in one flat vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

# A bare state_dict does not say which tensors are trained. These names are what torch's own
# normalization layers call the statistics they only track.
TRACKED_STATISTICS = ("running_mean", "running_var")


# What classifiers are called in torchvision, timm, transformers and most other models.
HEAD_NAMES = frozenset({"classifier", "fc", "head", "heads", "lm_head", "logits", "score"})


class UnknownLayer(ValueError):
    """A rule looks at one layer of the model, and that layer is not known or not in the model."""


@dataclass(frozen=True)
class Layout:
    """The order, names and shapes of the tensors that make up a vector of `d` coordinates.

    Trainable tensors come first, then what is not trained: frozen parameters and floating-point buffers. No score,
    norm or distance looks at buffers; `Defense.buffers` says how they are combined. Integer buffers (BatchNorm's
    counters) are not in the vector: averaging a counter means nothing.
    Tied weights are in the vector once, under the first of their names.

    Some rules look at the head, the classifier's weight matrix. `head` names it. If it is not given, it is the last
    trainable matrix, unless there is a doubt. Then it stays None and rules that need it ask for it. Doubts are:

    * Other matrices have a classifier's name (`fc`, `classifier`, `head`, …) and the last one has not.
    * By their shapes, another linear layer may take the last one's output, and there is a linear layer whose output
      none takes: the classifier may have been registered before the layers below it.
    * There are no matrices, or only LoRA adapters.

    Args:
        shapes: Names and shapes in the order of the vector.
        head: The name of the classifier's weight matrix: the "last layer" of the papers. None: not known.
        n_trainable: Coordinates [0, n_trainable) are weights, the rest are buffers.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    head: str | None
    n_trainable: int

    def __post_init__(self) -> None:
        if self.head is not None and self.head not in self.trainable:
            raise UnknownLayer(f"head must be one of {sorted(self.trainable)}, got {self.head!r}")

    @classmethod
    def of(cls, model: nn.Module | Mapping[str, Any], head: str | None = None) -> Layout:
        """The layout of a module, a `state_dict`, or any other mapping of names to arrays (Flower's `ArrayRecord`)."""
        if isinstance(model, nn.Module):
            parameters = dict(model.named_parameters(remove_duplicate=False))
            trained = {name: p for name, p in parameters.items() if p.requires_grad}
            rest = {name: p for name, p in parameters.items() if not p.requires_grad} | dict(model.named_buffers())
        elif isinstance(model, Mapping):
            trained = {name: tensor for name, tensor in model.items() if not _is_tracked(name)}
            rest = {name: tensor for name, tensor in model.items() if _is_tracked(name)}
        else:
            raise TypeError(f"a model must be an nn.Module or a dict of named tensors, got {type(model).__name__}")
        trainable, buffers = _floating_shapes(trained), _floating_shapes(rest)
        if not trainable:
            raise ValueError(f"a layout needs at least one trainable floating-point tensor, got {sorted(buffers)}")
        copies = find_tied({**trained, **rest})
        head = head or _find_head(trainable)
        once = [(name, shape) for name, shape in trainable.items() if name not in copies]
        n_trainable = sum(math.prod(shape) for _, shape in once)
        once += [(name, shape) for name, shape in buffers.items() if name not in copies]
        return cls(tuple(once), copies.get(head, head) if head else None, n_trainable)

    def require_head(self) -> str:
        """The head's name, or an error that asks for it."""
        if self.head is None:
            matrices = [name for name, shape in self.shapes if len(shape) >= 2 and name in self.trainable]
            raise UnknownLayer(
                "this rule looks at the classifier's weight matrix, and which one that is cannot be seen from the "
                f"model: pass head=... (or layer=... to the rule itself), one of {matrices or sorted(self.trainable)}"
            )
        return self.head

    def find_layer(self, name: str | None = None) -> str:
        """The name of a trainable tensor (default: the head), or an error that lists the names there are."""
        name = name or self.require_head()
        if name not in self.trainable:  # buffers count in no score
            raise UnknownLayer(f"layer must be one of {sorted(self.trainable)}, got {name!r}")
        return name

    def only(self, names: Collection[str]) -> Layout:
        """The layout of a shorter vector, which holds only these tensors."""
        shapes = tuple((name, shape) for name, shape in self.shapes if name in names)
        n_trainable = sum(math.prod(shape) for name, shape in shapes if name in self.trainable)
        return Layout(shapes, self.head if self.head in names else None, n_trainable)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor is in the vector."""
        slices, start = {}, 0
        for name, shape in self.shapes:
            slices[name] = slice(start, start + math.prod(shape))
            start = slices[name].stop
        return slices

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """The names of the tensors that are trained."""
        return tuple(name for name, where in self.slices.items() if where.stop <= self.n_trainable)

    @cached_property
    def size(self) -> int:
        """`d`, the length of the vector."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """Where tracked variances are: no update may push them below zero."""
        return tuple(where for name, where in self.slices.items() if name.endswith("running_var"))

    def flatten(self, tensors: Mapping[str, Any]) -> Float[Tensor, " d"]:
        """One vector from named tensors or arrays; names that the layout does not know are ignored."""
        pieces = []
        for name, shape in self.shapes:
            if name not in tensors:
                raise ValueError(f"tensor {name!r} is missing, got {sorted(tensors)}")
            tensor = _as_tensor(tensors[name])
            if tuple(tensor.shape) != shape:
                raise ValueError(f"tensor {name!r} needs shape {shape}, got {tuple(tensor.shape)}")
            pieces.append(tensor.reshape(-1))
        return torch.cat(pieces)

    def unflatten(self, vector: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """Named views into `vector`; leading dimensions are kept."""
        batch = vector.shape[:-1]
        return {name: vector[..., self.slices[name]].reshape((*batch, *shape)) for name, shape in self.shapes}


def find_tied(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Names of tensors that share all their memory with an earlier one, and that one's name."""
    first: dict[Any, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.numel() > 0 and tensor.device.type != "meta":
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if first.setdefault(place, name) != name:
                tied[name] = first[place]
    return tied


def _find_head(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The last matrix, or None where names or shapes make it doubtful; see `Layout`."""
    matrices = {name: shape for name, shape in shapes.items() if len(shape) >= 2 and "lora_" not in name}
    if not matrices:
        return None
    last = list(matrices)[-1]
    named = [name for name in matrices if HEAD_NAMES & set(name.split("."))]
    if named and last not in named:
        return None
    linear = {name: shape for name, shape in matrices.items() if len(shape) == 2}
    feeding = {
        name
        for name, (n_out, _) in linear.items()
        if any(n_out == n_in for other, (_, n_in) in linear.items() if other != name)
    }
    return None if last in feeding and feeding != set(linear) else last


def _floating_shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if _is_floating(tensor.dtype)}


def _is_floating(dtype: Any) -> bool:
    if isinstance(dtype, torch.dtype):
        return dtype.is_floating_point
    return bool(np.issubdtype(np.dtype(dtype), np.floating))


def _is_tracked(name: str) -> bool:
    return name.rpartition(".")[2] in TRACKED_STATISTICS


def _as_tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array
    # Flower's Array keeps serialized bytes and offers numpy(), which is read-only: hence the copy.
    return torch.from_numpy(np.array(array.numpy() if hasattr(array, "numpy") else array))
