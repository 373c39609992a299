"""The fast convolution computes what torch's own does, takes gradients as it does, and knows when to leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy

from cosdefense.training import fast_convolution
from cosdefense.training.fast_convolution import (
    Axis,
    FastConv2d,
    convolve,
    convolve_by_interpolation,
    use_fast_convolutions,
)
from cosdefense.training.models import paper_cnn
from cosdefense.training.task import Task

Convolve = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def everything(convolve: Convolve, images: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The result and its slopes along all inputs, for an arbitrary slope of the result."""
    inputs = [tensor.clone().requires_grad_() for tensor in (images, weight, bias) if tensor is not None]
    result = convolve(inputs[0], inputs[1], inputs[2] if bias is not None else None)
    slope = torch.randn(result.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [result.detach(), *torch.autograd.grad(result, inputs, slope.to(result.dtype))]


def drawn(n: int, i: int, o: int, pixels: tuple[int, int], kernel: tuple[int, int], seed: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, i, *pixels, generator=rng, dtype=torch.float64),
        torch.randn(o, i, *kernel, generator=rng, dtype=torch.float64),
        torch.randn(o, generator=rng, dtype=torch.float64),
    ]


pair = st.tuples(st.integers(1, 7), st.integers(1, 7))
few = st.integers(1, 3)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(few, few, few, pair, pair, st.tuples(few, few), st.tuples(st.integers(0, 3), st.integers(0, 3)), st.booleans())
def test_interpolation_is_the_definition(
    n: int,
    i: int,
    o: int,
    extra: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    with_bias: bool,
) -> None:
    """In float64, where rounding hides nothing; pixels that no result needs are drawn too."""
    pixels = tuple(max(1, k - 2 * p + e - 1) for k, p, e in zip(kernel, padding, extra, strict=True))
    lines = [Axis(*line) for line in zip(pixels, kernel, stride, padding, strict=True)]
    assume(lines[0].has_enough_points and lines[1].has_enough_points)
    images, weight, bias = drawn(n, i, o, (pixels[0], pixels[1]), kernel, seed=n + i)
    own = bias if with_bias else None
    expected = everything(lambda x, w, b: conv2d(x, w, b, stride, padding), images, weight, own)
    found = everything(lambda x, w, b: convolve_by_interpolation(x, w, b, lines[0], lines[1]), images, weight, own)
    also = everything(lambda x, w, b: convolve(x, w, b, stride, padding), images, weight, own)
    for a, b, c in zip(expected, found, also, strict=True):
        assert a.shape == b.shape == c.shape
        scale = max(1.0, float(a.abs().max()))
        assert torch.allclose(a, b, atol=1e-10 * scale)
        assert torch.allclose(a, c, atol=1e-10 * scale)


@pytest.mark.parametrize(
    ("channels", "pixels", "kernel", "stride", "padding"),
    [((64, 128), 14, 6, 2, 0), ((128, 128), 4, 3, 1, 1), ((64, 64), 7, 5, 1, 0), ((128, 128), 5, 5, 1, 0)],
    ids=["paper", "padded", "5×5", "whole image"],
)
def test_rounding_errors_stay_near_torchs_own(
    channels: tuple[int, int], pixels: int, kernel: int, stride: int, padding: int
) -> None:
    """Lengths of the errors in float32, against float64: of the order of 1e-6 of what is computed."""
    images, weight, bias = drawn(32, *channels, (pixels, pixels), (kernel, kernel), seed=0)
    line = Axis(pixels, kernel, stride, padding)
    assert line.outputs == 1 or fast_convolution.is_faster(line, line, *channels)

    def fast(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return convolve(x, w, b, (stride, stride), (padding, padding))

    exact = everything(lambda x, w, b: conv2d(x, w, b, stride, padding), images, weight, bias)
    for a, b in zip(everything(fast, images.float(), weight.float(), bias.float()), exact, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


def test_a_whole_model_has_the_gradient_that_autograd_finds() -> None:
    torch.manual_seed(0)
    model = paper_cnn((1, 28, 28), 10)
    rng = torch.Generator().manual_seed(1)
    images, labels = torch.rand(40, 1, 28, 28, generator=rng), torch.randint(0, 10, (40,), generator=rng)
    task = Task.of(model, fast_convolutions=True)
    found, _ = task.gradient(task.initial(), images, labels)
    exact = model.double()
    slopes = torch.autograd.grad(cross_entropy(exact(images.double()), labels), list(exact.parameters()))
    expected = torch.cat([slope.flatten() for slope in slopes])
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert torch.allclose(task.logits(task.initial(), images).double(), exact(images.double()), atol=1e-5)


def test_the_papers_model_takes_the_fast_way_and_batched_clients_too(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def noted(images: Tensor, *others: object) -> Tensor:
        taken.append(tuple(images.shape))
        return convolve_by_interpolation(images, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fast_convolution, "convolve_by_interpolation", noted)
    torch.manual_seed(0)
    model = use_fast_convolutions(paper_cnn((1, 28, 28), 10))
    names: dict[str, Tensor] = dict(model.named_parameters())
    images, labels = torch.rand(2, 32, 1, 28, 28), torch.randint(0, 10, (2, 32))

    def loss(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(torch.func.functional_call(model, weights, (images,)), labels)

    one_by_one = [torch.func.grad(loss)(names, *own) for own in zip(images, labels, strict=True)]
    assert taken == [(32, 64, 14, 14)] * 2
    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(names, images, labels)
    for name in names:
        assert torch.allclose(together[name], torch.stack([one[name] for one in one_by_one]), atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 128, 3, groups=2),
        nn.Conv2d(64, 128, 3, dilation=2),
        nn.Conv2d(64, 128, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(64, 128, 3, padding="same"),
        nn.Conv2d(64, 128, 1),
        nn.Conv2d(64, 128, 3, padding=4),
        nn.ConvTranspose2d(64, 128, 3),
        nn.Sequential(nn.Conv2d(64, 128, 3), nn.Conv2d(128, 8, (3, 1), (1, 2), bias=False)),
    ],
    ids=["groups", "dilation", "circular", "same", "1×1", "wide", "transposed", "two"],
)
def test_layers_of_every_kind_answer_as_before(layer: nn.Module) -> None:
    torch.manual_seed(0)
    for images in (torch.rand(32, 64, 5, 5), torch.rand(1, 64, 7, 6), torch.rand(64, 6, 6)):
        expected = layer(images)
        assert torch.allclose(use_fast_convolutions(layer)(images), expected, atol=1e-5)


def test_only_plain_layers_are_replaced() -> None:
    class Own(nn.Conv2d):
        def forward(self, images: Tensor) -> Tensor:
            return images

    model = nn.Sequential(nn.Conv2d(1, 2, 3), Own(1, 2, 3))
    keys = list(model.state_dict())
    use_fast_convolutions(model)
    assert [type(layer) for layer in model] == [FastConv2d, Own]
    assert list(model.state_dict()) == keys


def test_impossible_sizes_are_refused_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="Kernel size"):
        use_fast_convolutions(nn.Conv2d(64, 128, 6))(torch.rand(32, 64, 4, 4))
