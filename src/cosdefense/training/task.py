"""A model and its loss as pure functions of one flat vector."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ..core import Layout
from .fast_convolution import use_fast_convolutions


@dataclass(frozen=True, eq=False)
class Task:
    """The vector holds the trainable tensors, then the floating-point buffers (BatchNorm's statistics).

    Images are pixels in [0, 1]; normalisation happens in here, so that attacks and client-side
    defenses work on what a camera sees.
    """

    training: nn.Module  # two skeletons, whose own tensors are never read nor written during a run
    evaluating: nn.Module
    layout: Layout
    mean: tuple[float, ...] = (0.0,)  # per channel
    std: tuple[float, ...] = (1.0,)
    bfloat16: bool = False  # gradients through activations of eight bits; parameters stay as they are

    @cached_property
    def _channels(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation where the model is: a copy from the host would stop a GPU at every step."""
        device = next(self.training.parameters()).device
        return (
            torch.tensor(self.mean, dtype=torch.float64, device=device),
            torch.tensor(self.std, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        head: str | None = None,
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        bfloat16: bool = False,
        fast_convolutions: bool = False,
    ) -> Task:
        """A task from any module that maps images to logits. The module is copied and never changed.

        `fast_convolutions` makes plain convolutions faster on a CPU; they round differently (fast_convolution.py).
        """
        training, evaluating = copy.deepcopy(model).train(), copy.deepcopy(model).eval()
        if fast_convolutions:
            for copied in (training, evaluating):
                use_fast_convolutions(copied)
        task = cls(training, evaluating, Layout.of(model, head), mean, std, bfloat16)
        _ = task._channels  # made here, not in the middle of a transformation that would wrap it
        return task

    def twin(self) -> Task:
        """The same task for another thread: calls put their tensors into the skeletons for as long as they last."""
        twin = replace(self, training=_skeleton(self.training), evaluating=_skeleton(self.evaluating))
        _ = twin._channels
        return twin

    def initial(self) -> Float[Tensor, " d"]:
        """The vector of the model as it was given."""
        tensors = {**dict(self.training.named_parameters()), **dict(self.training.named_buffers())}
        return self.layout.flatten(tensors).detach().clone()

    def logits(self, params: Float[Tensor, " d"], images: Float[Tensor, "b *shape"]) -> Float[Tensor, "b c"]:
        """What the model answers, in evaluation mode."""
        out: Tensor = functional_call(self.evaluating, self.layout.unflatten(params), (self._normalized(images),))
        return out

    def logits_by_batch(self, params: Float[Tensor, " d"], images: Float[Tensor, "b *shape"]) -> Float[Tensor, "b c"]:
        """What it answers in training mode, as code does that never calls `eval()`: with statistics of these images."""
        tensors = {name: tensor.clone() for name, tensor in self.layout.unflatten(params).items()}
        own = {name: buffer.clone() for name, buffer in self.training.named_buffers() if name not in tensors}
        out: Tensor = functional_call(self.training, {**tensors, **own}, (self._normalized(images),))
        return out

    def loss(
        self, params: Float[Tensor, " d"], images: Float[Tensor, "b *shape"], labels: Int[Tensor, " b"]
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy, in evaluation mode."""
        return cross_entropy(self.logits(params, images), labels)

    def gradient(
        self, params: Float[Tensor, " d"], images: Float[Tensor, "b *shape"], labels: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The gradient in training mode (zero on buffers), and `params` with its buffers refreshed by this batch."""
        tensors = self.layout.unflatten(params)
        weights = {name: tensors[name] for name in self.layout.trainable}
        others = {**dict(self.training.named_parameters()), **dict(self.training.named_buffers())}
        # Each buffer its own copy, made one per client under vmap by adding a zero of the batch: BatchNorm
        # writes in place, and writes into views of `params` would be lost without an error.
        zero = torch.zeros_like(images.flatten()[0])
        buffers = {
            name: tensors.get(name, other.detach()) + zero.to(other.dtype)
            for name, other in others.items()
            if name not in weights
        }

        def loss(weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            fresh = {name: buffer.clone() for name, buffer in buffers.items()}
            # No cache: what it keeps of the weights would be stale when a recording is replayed.
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
                logits = functional_call(self.training, {**weights, **fresh}, (self._normalized(images),))
            return cross_entropy(logits.to(params.dtype), labels), fresh

        slopes, fresh = torch.func.grad(loss, has_aux=True)(weights)
        # Written where they belong: gathering hundreds of tensors first would read and write everything twice.
        return self._written(torch.zeros_like(params), slopes), self._written(params.clone(), fresh)

    def _written(self, vector: Float[Tensor, " d"], tensors: dict[str, Tensor]) -> Float[Tensor, " d"]:
        """The vector with these tensors in their places; what the layout does not know is ignored."""
        for name in self.layout.slices.keys() & tensors.keys():
            vector[self.layout.slices[name]].view(tensors[name].shape).copy_(tensors[name])
        return vector

    def _normalized(self, images: Tensor) -> Tensor:
        if self.mean == (0.0,) and self.std == (1.0,):
            return images
        shape = (-1,) + (1,) * (images.ndim - 2)
        mean, std = (values.to(images.dtype).view(shape) for values in self._channels)
        return (images - mean) / std


def _skeleton(model: nn.Module) -> nn.Module:
    """Modules of its own around the same tensors."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
