"""The networks have the sizes their papers give."""

from __future__ import annotations

import pytest
import torch

from cosdefense.core import Layout
from cosdefense.training.models import MODELS, paper_cnn, resnet18, small_cnn


def test_the_papers_cnn() -> None:
    model = paper_cnn((1, 28, 28), 10)
    layout = Layout.of(model)
    assert layout.n_trainable == layout.size == 710_218
    assert layout.head == "7.weight"
    assert dict(layout.shapes)["7.weight"] == (10, 128)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    # Xavier-uniform: bounded by sqrt(6 / (fan in + fan out)).
    first = model.get_parameter("0.weight").detach()
    assert float(first.abs().max()) == pytest.approx((6 / (64 + 64 * 64)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(("norm", "buffers"), [("batch", 9600), ("group", 0)])
def test_resnet18(norm: str, buffers: int) -> None:
    model = resnet18((3, 32, 32), 10, norm)  # type: ignore[arg-type]
    layout = Layout.of(model)
    assert layout.n_trainable == 11_173_962
    assert layout.size - layout.n_trainable == buffers
    assert layout.head == "classifier.weight"
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "small-cnn"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_small_models_fit_any_image(name: str, shape: tuple[int, int, int]) -> None:
    assert MODELS[name](shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
    assert small_cnn(shape, 7, width=4)(torch.zeros(2, *shape)).shape == (2, 7)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="paper-cnn needs 28×28 images, got 8×8"):
        paper_cnn((1, 8, 8), 10)
    with pytest.raises(ValueError, match="resnet18 needs 32×32 images, got 28×28"):
        resnet18((1, 28, 28), 10)
    for make in (small_cnn, paper_cnn, resnet18):
        with pytest.raises(ValueError, match=r"needs images .*, got samples of shape \(30,\): mlp takes any shape"):
            make((30,), 2)  # type: ignore[arg-type]
