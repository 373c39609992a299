"""The first step of all clients of a round as one computation, recorded as a CUDA graph.

The clients of a round start from the same parameters. So in their first step activations, and the gradients with
respect to them, are those of one large batch: only the gradients of the weights differ from client to client. A round
of a small network is then about a hundred kernels instead of a thousand, which is what limits a GPU with such networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import conv_transpose2d, pad

from .local_sgd import LocalSGD
from .task import Task

WARM_UP = 2  # runs before recording: libraries choose their kernels and allocate their workspaces
MAX_IMAGES = 4096  # of one graph, unless a client has more: memory for their activations stays bounded

Pair = tuple[int, int]


def can_stack(task: Task, trainer: LocalSGD, n_steps: int) -> bool:
    """Whether clients can train as one computation: one step, no hooks, no buffers, and only layers made for it.

    BatchNorm writes buffers, and dropout draws random numbers: each client needs its own.
    """
    layers = [module for module in task.training_model.modules() if not isinstance(module, nn.Sequential)]
    return n_steps == 1 and not trainer.hooks and all(_is_known(layer) for layer in layers)


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.ReLU) and layer.inplace:
        return False
    return type(layer) in (nn.Linear, nn.Flatten, nn.ReLU, nn.MaxPool2d) or _is_plain_convolution(layer)


def _is_plain_convolution(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
        and not isinstance(layer.padding, str)
    )


def train_stacked(
    task: Task,
    trainer: LocalSGD,
    params: Float[Tensor, " d"],
    images: Shaped[Tensor, "n steps b *shape"],
    labels: Shaped[Tensor, "n steps b *targets"],
) -> Float[Tensor, "n d"]:
    """Compute the updates of all clients by CUDA graphs, which are kept for later rounds and released with the task."""
    if task not in _stacks:
        _stacks[task] = Stack(task)
    n_clients = max(1, MAX_IMAGES // labels[0].numel())
    parts = zip(torch.split(images, n_clients), torch.split(labels, n_clients), strict=True)
    updates = [_stacks[task].replay(trainer, params, *part) for part in parts]
    return updates[0] if len(updates) == 1 else torch.cat(updates)


class Stack:
    """The graphs of a task, one for each number of clients. They refer to memory of their own, not to the task."""

    def __init__(self, task: Task) -> None:
        self._form = make_stackable(task)
        self._recordings = dict[object, Recording]()

    def replay(self, trainer: LocalSGD, *inputs: Tensor) -> Tensor:
        """The updates of these clients. The training of a new number of clients is recorded first."""
        settings = (trainer, torch.backends.cudnn.allow_tf32, *((tensor.shape, tensor.dtype) for tensor in inputs))
        if settings not in self._recordings:
            # All share the memory of the first: only one is replayed at a time, and what it computed is copied.
            pool = next((recording.graph.pool() for recording in self._recordings.values()), None)
            self._recordings[settings] = Recording(partial(train_together, self._form, trainer), pool, *inputs)
        return self._recordings[settings].replay(*inputs)


_stacks: WeakKeyDictionary[Task, Stack] = WeakKeyDictionary()


class Recording:
    """A CUDA graph of the training of so many clients."""

    def __init__(self, train: Callable[..., Tensor], pool: Any, *inputs: Tensor) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        stream = torch.cuda.Stream(inputs[0].device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(inputs[0].device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                train(*self._inputs)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=stream):
            self._updates = train(*self._inputs)

    def replay(self, *inputs: Tensor) -> Tensor:
        for recorded, given in zip(self._inputs, inputs, strict=True):
            recorded.copy_(given)
        self.graph.replay()
        return self._updates.clone()


def train_together(
    form: Task,
    trainer: LocalSGD,
    params: Float[Tensor, " d"],
    images: Shaped[Tensor, "n steps b *shape"],
    labels: Shaped[Tensor, "n steps b *targets"],
) -> Float[Tensor, "n d"]:
    """Train all clients as one computation; `form` is what `make_stackable` returned."""
    updates: Tensor = torch.func.vmap(partial(trainer, form), in_dims=(None, 0, 0))(params, images, labels)
    return updates


def make_stackable(task: Task) -> Task:
    """The same task with gradients by torch.func and with convolutions made for it."""
    form = task.functional_form.copy_for_thread()
    for layer in form.training_model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.__class__ = StackedConv2d
    return form


class StackedConv2d(nn.Conv2d):
    """Computes what `nn.Conv2d` does, by matrix products. Under vmap weight gradients are products too, one per client.

    cuDNN has no fast kernel for the weight gradients of many clients.
    """

    def forward(self, images: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled(images.device.type):
            dtype = torch.get_autocast_dtype(images.device.type)
            images, weight = images.to(dtype), weight.to(dtype)
        stride, padding = (self.stride[0], self.stride[1]), (int(self.padding[0]), int(self.padding[1]))
        patches = _patches(images.detach(), weight.shape[2:], stride, padding)
        outputs: Tensor = Convolve.apply(images, weight, patches, stride, padding)  # type: ignore[no-untyped-call]
        return outputs if bias is None else outputs + bias.to(outputs.dtype)[:, None, None]


class Convolve(torch.autograd.Function):
    """A convolution without bias, given the patches of its images. Channels come last in memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, weight: Tensor, patches: Tensor, stride: Pair, padding: Pair) -> Tensor:
        n_filters, _, *kernel = weight.shape
        sides = zip(images.shape[2:], kernel, stride, padding, strict=True)
        places = [(pixels + 2 * zeros - size) // step + 1 for pixels, size, step, zeros in sides]
        with _convolution_precision():
            outputs = patches @ weight.permute(2, 3, 1, 0).reshape(-1, n_filters)
        return outputs.view(len(images), *places, n_filters).permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, weight, patches, ctx.stride, ctx.padding = inputs
        ctx.pixels = images.shape[2:]
        ctx.save_for_backward(weight, patches)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, patches = ctx.saved_tensors
        n_filters, n_channels, *kernel = weight.shape
        to_images = None
        if ctx.needs_input_grad[0]:
            sides = zip(ctx.pixels, gradient.shape[2:], kernel, ctx.stride, ctx.padding, strict=True)
            rest = [pixels - (places - 1) * step + 2 * zeros - size for pixels, places, size, step, zeros in sides]
            last = weight.contiguous(memory_format=torch.channels_last)
            to_images = conv_transpose2d(gradient, last, None, ctx.stride, ctx.padding, rest)
        with _convolution_precision():
            products = patches.T @ gradient.permute(0, 2, 3, 1).reshape(-1, n_filters)
        return to_images, products.view(*kernel, n_channels, n_filters).permute(3, 2, 0, 1), None, None, None


@contextmanager
def _convolution_precision() -> Iterator[None]:
    """Inside, products round as convolutions may: `training.tf32` is about convolutions only."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
        yield
    finally:
        matmul.allow_tf32 = before


def _patches(
    images: Float[Tensor, "b c h w"], kernel: Sequence[int], stride: Pair, padding: Pair
) -> Float[Tensor, "p k"]:
    """What the kernel sees at each of its places, one row per place: by row, by column, by channel."""
    pixels = images.permute(0, 2, 3, 1)
    if any(padding):
        pixels = pad(pixels, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = pixels.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])
    n_places = windows.shape[0] * windows.shape[1] * windows.shape[2]
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(n_places, -1)
