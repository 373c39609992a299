"""Convolutions on a CPU with fewer multiplications than their definition has.

A row of a kernel slid along a row of pixels is a product of two polynomials. Evaluated at a few points, polynomials
are multiplied point by point, and interpolation gives the coefficients back. In two dimensions 3×3 taps that make
5×5 numbers take 49 multiplications per pair of channels instead of 225; what is left is a matrix product per point.

Winograd. Arithmetic Complexity of Computations. SIAM 1980.
Lavin, Gray. Fast Algorithms for Convolutional Neural Networks. CVPR 2016. https://arxiv.org/abs/1509.09308
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad

POINTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0)  # and infinity; with more of them rounding errors would show
LEAST_SAVING = 2.5  # multiplications by definition over those made; below it torch's own loops are faster
LEAST_GAIN = 256  # the saving times the channels: evaluation and interpolation cost something too
LEAST_IMAGES = 32

Pair = tuple[int, int]
Matrix = np.ndarray[Pair, np.dtype[np.float64]]


def use_fast_convolutions(model: nn.Module) -> nn.Module:
    """The same module; its plain convolutions take a fast way wherever there is one."""
    for module in model.modules():
        if type(module) is nn.Conv2d:  # what a subclass computes is its own affair
            module.__class__ = FastConv2d
    return model


class FastConv2d(nn.Conv2d):
    """Computes what `nn.Conv2d` does, within rounding."""

    def forward(self, images: Tensor) -> Tensor:
        usual = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if not usual or isinstance(self.padding, str) or images.ndim != 4 or images.device.type != "cpu":
            return super().forward(images)
        stride, padding = (self.stride[0], self.stride[1]), (self.padding[0], self.padding[1])
        return convolve(images, self.weight, self.bias, stride, padding)


def convolve(
    images: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "o i r s"],
    bias: Float[Tensor, " o"] | None,
    stride: Pair,
    padding: Pair,
) -> Float[Tensor, "b o y x"]:
    """`conv2d`, by the way that is fastest on a CPU."""
    if images.shape[1:] == weight.shape[1:] and padding == (0, 0):  # a kernel as large as the image: one number each
        return linear(images.flatten(1), weight.flatten(1), bias)[:, :, None, None]
    rows, columns = (Line(images.shape[2 + i], weight.shape[2 + i], stride[i], padding[i]) for i in (0, 1))
    if len(images) >= LEAST_IMAGES and _pays(rows, columns, images.shape[1], len(weight)):
        return interpolated(images, weight, bias, rows, columns)
    return conv2d(images, weight, bias, stride, padding)


@dataclass(frozen=True)
class Line:
    """A convolution along one dimension. With a stride, neighbors form groups, and groups slide along groups."""

    pixels: int
    kernel: int
    stride: int
    padding: int

    @property
    def results(self) -> int:
        return (self.pixels + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def taps(self) -> int:
        """Groups of the kernel."""
        return -(-self.kernel // self.stride)

    @property
    def points(self) -> int:
        """Groups of pixels that the results depend on: as many points decide them."""
        return self.results + self.taps - 1

    @property
    def is_short(self) -> bool:
        """Whether there are points enough."""
        return self.results >= 1 and self.points <= len(POINTS) + 1

    @property
    def saving(self) -> float:
        """How many times fewer multiplications; those with padding would not have been made."""
        starts = [result * self.stride - self.padding for result in range(self.results)]
        made = [min(self.pixels, start + self.kernel) - max(0, start) for start in starts]
        return sum(made) / (self.points * self.stride)

    @property
    def margins(self) -> Pair:
        """What the pixels lack before and after; negative where the last ones count for nothing."""
        return self.padding, self.points * self.stride - self.pixels - self.padding


def _pays(rows: Line, columns: Line, n_channels: int, n_filters: int) -> bool:
    """Measured on single layers, forward and back: above these limits 1.03 to 2.5 times as fast, below often slower."""
    if not (rows.is_short and columns.is_short):
        return False
    saving, depth = rows.saving * columns.saving, rows.stride * columns.stride * n_channels
    return saving >= LEAST_SAVING and saving * min(depth, n_filters) >= LEAST_GAIN


def interpolated(
    images: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "o i r s"],
    bias: Float[Tensor, " o"] | None,
    rows: Line,
    columns: Line,
) -> Float[Tensor, "b o y x"]:
    """The convolution through values at points."""
    (n, n_channels), n_filters = images.shape[:2], len(weight)
    depth = rows.stride * columns.stride * n_channels
    filling = (0, columns.taps * columns.stride - columns.kernel, 0, rows.taps * rows.stride - rows.kernel)
    # Channels last before anything else, so that the gradients come back that way too.
    pixels = _padded(images, columns.margins + rows.margins).permute(0, 2, 3, 1)
    pixels = pixels.view(n, rows.points, rows.stride, columns.points, columns.stride, n_channels)
    pixels = pixels.permute(1, 3, 0, 2, 4, 5)
    kernel = _padded(weight, filling).permute(2, 3, 1, 0)
    kernel = kernel.view(rows.taps, rows.stride, columns.taps, columns.stride, n_channels, n_filters).transpose(1, 2)
    evaluating, weighing, collecting = zip(_matrices(rows, images), _matrices(columns, images), strict=True)
    values = _along_both(evaluating, pixels.reshape(rows.points, columns.points, -1))
    factors = _along_both(weighing, kernel.reshape(rows.taps, columns.taps, -1))
    products = torch.bmm(values.view(-1, n, depth), factors.view(-1, depth, n_filters))
    found = _along_both(collecting, products.view(rows.points, columns.points, -1))
    found = found.view(rows.results, columns.results, n, n_filters).permute(2, 3, 0, 1)
    return found if bias is None else found + bias[:, None, None]


def _padded(images: Tensor, margins: tuple[int, ...]) -> Tensor:
    return pad(images, margins) if any(margins) else images  # `pad` copies, even by nothing


def _along_both(matrices: tuple[Tensor, ...], tensor: Float[Tensor, "y x k"]) -> Float[Tensor, "p q k"]:
    """One matrix along the first dimension, one along the second."""
    rows, columns = matrices
    return columns @ (rows @ tensor.flatten(1)).view(len(rows), *tensor.shape[1:])


def _matrices(line: Line, like: Tensor) -> tuple[Tensor, ...]:
    # Tensors afresh every time: one made inside a transformation of torch.func would not outlive it.
    return tuple(torch.from_numpy(matrix).to(like.dtype) for matrix in _exact(line.results, line.taps))


@cache
def _exact(results: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices that evaluate pixels and kernel, and the one that makes results of their products.

    Sliding is multiplication transposed: where that evaluates, multiplies and interpolates, the transposed matrices
    come in the opposite order.
    """
    n = results + taps - 1

    def values(width: int) -> Matrix:
        """Of a polynomial with so many coefficients, at every point; at infinity it is the last coefficient."""
        return np.vstack([np.array(POINTS[: n - 1])[:, None] ** np.arange(width), np.eye(width)[-1]])

    evaluating = np.linalg.inv(values(n)).T
    scale = np.abs(evaluating).max(axis=1, keepdims=True)  # moved to the kernel: float32 likes numbers near one
    return evaluating / scale, values(taps) * scale, values(results).T.copy()
