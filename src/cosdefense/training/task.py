"""A model and its loss as pure functions of one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call

from ..core import Layout
from .fast_convolution import use_fast_convolutions
from .losses import LossFunction, cross_entropy


@dataclass(frozen=True, eq=False)
class Task:
    """A model and its loss. The vector holds the trainable tensors, then the floating-point buffers (BatchNorm).

    Images are numbers in [0, 1]. The task normalizes them itself, so that attacks and client-side defenses work on
    images before normalization. Inputs may be other numbers or token ids just as well.
    """

    training_model: nn.Module  # two copies of the model, one per mode; their tensors are not used during a run
    evaluation_model: nn.Module
    layout: Layout
    mean: tuple[float, ...] = (0.0,)  # per channel, for normalization
    std: tuple[float, ...] = (1.0,)
    bfloat16: bool = False  # compute gradients through bfloat16 activations; parameters keep their type
    functional: bool = False  # compute gradients by torch.func, as vmap and CUDA graphs need it
    loss_function: LossFunction = cross_entropy  # (outputs, targets) → the mean loss of a batch
    twin: Task | None = None  # a task that differs in its initial parameters only: its CUDA graphs serve this one too

    @cached_property
    def _channels(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation on the model's device: copying them in every step would stall a GPU."""
        device = next(self.training_model.parameters()).device
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
        loss: LossFunction = cross_entropy,
        twin: Task | None = None,
    ) -> Task:
        """A task from any module that maps inputs to logits, or to values. The module is copied and never changed.

        `loss` is any function of outputs and targets that gives the mean of a batch (`cosdefense.training.losses`).

        `fast_convolutions` makes plain convolutions faster on a CPU; they round differently (fast_convolution.py).
        """
        training, evaluating = copy.deepcopy(model).train(), copy.deepcopy(model).eval()
        if fast_convolutions:
            for copied in (training, evaluating):
                use_fast_convolutions(copied)
        task = cls(training, evaluating, Layout.of(model, head), mean, std, bfloat16, loss_function=loss, twin=twin)
        _ = task._channels  # created here: inside a transformation of torch.func the tensors would be wrapped
        return task

    @cached_property
    def functional_form(self) -> Task:
        """The same task with gradients by torch.func."""
        form = replace(self, functional=True)
        _ = form._channels
        return form

    def copy_for_thread(self) -> Task:
        """The same task for use in another thread: while a call runs, its tensors replace those of the modules."""
        copied = replace(
            self,
            training_model=_copy_modules(self.training_model),
            evaluation_model=_copy_modules(self.evaluation_model),
        )
        _ = copied._channels
        return copied

    def initial(self) -> Float[Tensor, " d"]:
        """The parameters of the given model, as one vector."""
        tensors = {**dict(self.training_model.named_parameters()), **dict(self.training_model.named_buffers())}
        return self.layout.flatten(tensors).detach().clone()

    def logits(
        self, params: Float[Tensor, " d"], images: Shaped[Tensor, "b *shape"], *, channels_last: bool = False
    ) -> Float[Tensor, "b *outputs"]:
        """The logits in evaluation mode. `channels_last` rearranges the weights as a GPU's convolutions are fastest."""
        tensors = self.layout.unflatten(params)
        if channels_last:
            tensors = {name: _to_channels_last(tensor) for name, tensor in tensors.items()}
        out: Tensor = functional_call(self.evaluation_model, tensors, (self._normalize(images),))
        return out

    def logits_with_batch_statistics(
        self, params: Float[Tensor, " d"], images: Shaped[Tensor, "b *shape"]
    ) -> Float[Tensor, "b *outputs"]:
        """The logits in training mode, with the statistics of these images: for code that never calls `eval()`."""
        tensors = {name: tensor.clone() for name, tensor in self.layout.unflatten(params).items()}
        others = {name: buffer.clone() for name, buffer in self.training_model.named_buffers() if name not in tensors}
        out: Tensor = functional_call(self.training_model, {**tensors, **others}, (self._normalize(images),))
        return out

    def loss(
        self, params: Float[Tensor, " d"], images: Shaped[Tensor, "b *shape"], labels: Shaped[Tensor, "b *targets"]
    ) -> Float[Tensor, ""]:
        """The mean loss, in evaluation mode."""
        return self.loss_function(self.logits(params, images), labels)

    def gradient(
        self, params: Float[Tensor, " d"], images: Shaped[Tensor, "b *shape"], labels: Shaped[Tensor, "b *targets"]
    ) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
        """The gradient in training mode (zero on buffers), and `params` with the buffers updated by this batch."""
        tensors = self.layout.unflatten(params)
        weights = {name: tensors[name] for name in self.layout.trainable}
        others = {**dict(self.training_model.named_parameters()), **dict(self.training_model.named_buffers())}
        # BatchNorm writes into buffers in place, and writes into views of `params` would be lost without an error.
        # So each buffer is copied; adding a zero of the batch makes one copy per client under vmap.
        zero = torch.zeros_like(images.flatten()[0])
        buffers = {
            name: tensors.get(name, other.detach()) + zero.to(other.dtype)
            for name, other in others.items()
            if name not in weights
        }

        def loss(weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            updated = {name: buffer.clone() for name, buffer in buffers.items()}
            # No cache: its copies of the weights would be stale when a CUDA graph is replayed.
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
                logits = functional_call(self.training_model, {**weights, **updated}, (self._normalize(images),))
            return self.loss_function(logits.to(params.dtype), labels), updated

        if self.functional:
            gradients, updated = torch.func.grad(loss, has_aux=True)(weights)
        else:
            gradients, updated = _compute_gradients(loss, weights)
        # Written into place: concatenating hundreds of tensors first would read and write everything twice.
        gradient = torch.zeros_like(params)
        if self.functional:
            gradient = gradient + zero  # one vector per client, also where all have the same parameters
        return self._write(gradients, gradient), self._write(updated, params.clone())

    def _write(self, tensors: dict[str, Tensor], vector: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """Write tensors into their places in the vector and return it; names that the layout lacks are ignored."""
        for name in self.layout.slices.keys() & tensors.keys():
            vector[self.layout.slices[name]].view(tensors[name].shape).copy_(tensors[name])
        return vector

    def _normalize(self, images: Tensor) -> Tensor:
        if self.mean == (0.0,) and self.std == (1.0,):
            return images
        shape = (-1,) + (1,) * (images.ndim - 2)
        mean, std = (values.to(images.dtype).view(shape) for values in self._channels)
        return (images - mean) / std


def _compute_gradients(
    loss: Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]], weights: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """As `torch.func.grad(loss, has_aux=True)`, to the same bits. A step of a small model takes half the time."""
    leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    with torch.enable_grad():
        value, updated = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), {name: buffer.detach() for name, buffer in updated.items()}


def _to_channels_last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=torch.channels_last) if weight.ndim == 4 else weight


def _copy_modules(model: nn.Module) -> nn.Module:
    """New modules around the same tensors."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
