"""Convolutions on a CPU with fewer multiplications than their definition has.

A row of a kernel slid along a row of pixels is a product of two polynomials. Evaluated at a few points, polynomials
are multiplied point by point, and interpolation gives the coefficients back. In two dimensions a 3×3 kernel with 5×5
outputs takes 49 multiplications per pair of channels instead of 225; what remains is a matrix product per point.

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

POINTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0)  # and infinity; more points would make rounding errors visible
MIN_SAVING = 2.5  # multiplications of the definition per multiplication made; below it torch's own loops are faster
MIN_GAIN = 256  # the saving times the channels: evaluation and interpolation have a cost too
MIN_IMAGES = 32

Pair = tuple[int, int]
Matrix = np.ndarray[Pair, np.dtype[np.float64]]


def use_fast_convolutions(model: nn.Module) -> nn.Module:
    """Change the plain convolutions of `model`, in place, to ones that use fewer multiplications where possible."""
    for module in model.modules():
        if type(module) is nn.Conv2d:  # a subclass may compute something else
            module.__class__ = FastConv2d
    return model


class FastConv2d(nn.Conv2d):
    """Computes what `nn.Conv2d` does, within rounding."""

    def forward(self, images: Tensor) -> Tensor:
        is_plain = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if not is_plain or isinstance(self.padding, str) or images.ndim != 4 or images.device.type != "cpu":
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
    """Compute `conv2d` by the method that is fastest on a CPU."""
    if images.shape[1:] == weight.shape[1:] and padding == (0, 0):  # a kernel as large as the image: one output each
        return linear(images.flatten(1), weight.flatten(1), bias)[:, :, None, None]
    rows, columns = (Axis(images.shape[2 + i], weight.shape[2 + i], stride[i], padding[i]) for i in (0, 1))
    if len(images) >= MIN_IMAGES and is_faster(rows, columns, images.shape[1], len(weight)):
        return convolve_by_interpolation(images, weight, bias, rows, columns)
    return conv2d(images, weight, bias, stride, padding)


@dataclass(frozen=True)
class Axis:
    """A convolution along one dimension. With a stride, neighbors form groups, and groups slide along groups."""

    pixels: int
    kernel: int
    stride: int
    padding: int

    @property
    def outputs(self) -> int:
        return (self.pixels + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def taps(self) -> int:
        """Groups of the kernel."""
        return -(-self.kernel // self.stride)

    @property
    def points(self) -> int:
        """Groups of pixels that the outputs depend on, which is how many points are needed."""
        return self.outputs + self.taps - 1

    @property
    def has_enough_points(self) -> bool:
        return self.outputs >= 1 and self.points <= len(POINTS) + 1

    @property
    def saving(self) -> float:
        """How many times fewer multiplications; those with padding are not counted."""
        starts = [output * self.stride - self.padding for output in range(self.outputs)]
        multiplied = [min(self.pixels, start + self.kernel) - max(0, start) for start in starts]
        return sum(multiplied) / (self.points * self.stride)

    @property
    def margins(self) -> Pair:
        """Padding before and after; negative where the last pixels are not used."""
        return self.padding, self.points * self.stride - self.pixels - self.padding


def is_faster(rows: Axis, columns: Axis, n_channels: int, n_filters: int) -> bool:
    """Whether interpolation beats torch's convolution.

    The limits were measured on single layers, forward and backward: above them interpolation was 1.03 to 2.5 times
    as fast, below them often slower.
    """
    if not (rows.has_enough_points and columns.has_enough_points):
        return False
    saving, depth = rows.saving * columns.saving, rows.stride * columns.stride * n_channels
    return saving >= MIN_SAVING and saving * min(depth, n_filters) >= MIN_GAIN


def convolve_by_interpolation(
    images: Float[Tensor, "b i h w"],
    weight: Float[Tensor, "o i r s"],
    bias: Float[Tensor, " o"] | None,
    rows: Axis,
    columns: Axis,
) -> Float[Tensor, "b o y x"]:
    """Evaluate pixels and kernel at points, multiply there, and interpolate the outputs."""
    (n, n_channels), n_filters = images.shape[:2], len(weight)
    depth = rows.stride * columns.stride * n_channels
    filling = (0, columns.taps * columns.stride - columns.kernel, 0, rows.taps * rows.stride - rows.kernel)
    # Channels last before anything else, so that the gradients have that order too.
    pixels = _pad(images, columns.margins + rows.margins).permute(0, 2, 3, 1)
    pixels = pixels.view(n, rows.points, rows.stride, columns.points, columns.stride, n_channels)
    pixels = pixels.permute(1, 3, 0, 2, 4, 5)
    kernel = _pad(weight, filling).permute(2, 3, 1, 0)
    kernel = kernel.view(rows.taps, rows.stride, columns.taps, columns.stride, n_channels, n_filters).transpose(1, 2)
    to_pixel_values, to_kernel_values, to_outputs = zip(
        _matrices(rows, images), _matrices(columns, images), strict=True
    )
    pixel_values = _transform(to_pixel_values, pixels.reshape(rows.points, columns.points, -1))
    kernel_values = _transform(to_kernel_values, kernel.reshape(rows.taps, columns.taps, -1))
    products = torch.bmm(pixel_values.view(-1, n, depth), kernel_values.view(-1, depth, n_filters))
    outputs = _transform(to_outputs, products.view(rows.points, columns.points, -1))
    outputs = outputs.view(rows.outputs, columns.outputs, n, n_filters).permute(2, 3, 0, 1)
    return outputs if bias is None else outputs + bias[:, None, None]


def _pad(images: Tensor, margins: tuple[int, ...]) -> Tensor:
    return pad(images, margins) if any(margins) else images  # `pad` copies even where there is nothing to add


def _transform(matrices: tuple[Tensor, ...], tensor: Float[Tensor, "y x k"]) -> Float[Tensor, "p q k"]:
    """Multiply by one matrix along the first dimension and by the other along the second."""
    rows, columns = matrices
    return columns @ (rows @ tensor.flatten(1)).view(len(rows), *tensor.shape[1:])


def _matrices(axis: Axis, like: Tensor) -> tuple[Tensor, ...]:
    # New tensors every time: one made inside a transformation of torch.func would not outlive it.
    return tuple(torch.from_numpy(matrix).to(like.dtype) for matrix in _exact_matrices(axis.outputs, axis.taps))


@cache
def _exact_matrices(n_outputs: int, n_taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices that evaluate the pixels, evaluate the kernel, and compute outputs from their products.

    A convolution is the transpose of polynomial multiplication, which evaluates, multiplies and interpolates. So the
    transposed matrices are applied in the opposite order.
    """
    n = n_outputs + n_taps - 1

    def evaluate(n_coefficients: int) -> Matrix:
        """The matrix that evaluates a polynomial at every point; at infinity it is the last coefficient."""
        powers = np.array(POINTS[: n - 1])[:, None] ** np.arange(n_coefficients)
        return np.vstack([powers, np.eye(n_coefficients)[-1]])

    evaluate_pixels = np.linalg.inv(evaluate(n)).T
    # Moved to the kernel: float32 rounds least with numbers near one.
    scale = np.abs(evaluate_pixels).max(axis=1, keepdims=True)
    return evaluate_pixels / scale, evaluate(n_taps) * scale, evaluate(n_outputs).T.copy()
