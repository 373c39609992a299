"""Models by name: small ones for digits and the two of the CosDefense paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

Shape = tuple[int, int, int]  # channels, height, width of one image
Norm = Literal["batch", "group"]


def mlp(shape: Shape, n_outputs: int, hidden: int = 64) -> nn.Module:
    """One hidden layer."""
    if hidden < 1:
        raise ValueError(f"mlp needs a hidden layer of at least 1, got {hidden}")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, n_outputs))


def small_cnn(shape: Shape, n_outputs: int, width: int = 16) -> nn.Module:
    """Two convolutions and a linear layer, for images as small as 8×8."""
    _check_images("small-cnn", shape)
    if width < 1 or min(shape[1:]) < 4:
        raise ValueError(
            f"small-cnn needs a width of at least 1 and images of at least 4×4, got {width} and {shape[1:]}"
        )
    n_features = 2 * width * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(n_features, n_outputs),
    )


def paper_cnn(shape: Shape, n_outputs: int) -> nn.Module:
    """The CosDefense paper's network for MNIST and Fashion-MNIST: 710,218 parameters, Xavier-uniform weights."""
    _check_images("paper-cnn", shape)
    if shape[1:] != (28, 28):
        raise ValueError(f"paper-cnn needs 28×28 images, got {shape[1]}×{shape[2]}")
    model = nn.Sequential(
        nn.Conv2d(shape[0], 64, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.Conv2d(64, 128, 6, stride=2),
        nn.ReLU(),
        nn.Conv2d(128, 128, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, n_outputs),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


def resnet18(shape: Shape, n_outputs: int, norm: Norm = "batch") -> nn.Module:
    """ResNet-18 for 32×32 images: a 3×3 stem and no max-pooling. 11,173,962 parameters for CIFAR-10.

    He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016.
    """
    _check_images("resnet18", shape)
    if shape[1:] != (32, 32):
        raise ValueError(f"resnet18 needs 32×32 images, got {shape[1]}×{shape[2]}")
    return ResNet18(shape[0], n_outputs, norm)


def _check_images(model: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"{model} needs images [channels, height, width], got samples of shape {shape}: mlp takes any shape"
        )


class ResNet18(nn.Module):
    def __init__(self, channels: int, n_outputs: int, norm: Norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1, bias=False), _normalization(64, norm))
        widths = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(ResidualBlock(inside, outside, stride, norm), ResidualBlock(outside, outside, 1, norm))
                for inside, outside, stride in widths
            )
        )
        self.classifier = nn.Linear(512, n_outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(relu(self.stem(images)))
        logits: Tensor = self.classifier(avg_pool2d(features, 4).flatten(1))
        return logits


class ResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
            _normalization(outside, norm),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            _normalization(outside, norm),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), _normalization(outside, norm)
            )

    def forward(self, images: Tensor) -> Tensor:
        return relu(self.body(images) + self.shortcut(images))


def _normalization(width: int, norm: Norm) -> nn.Module:
    return nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(32, width)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "small-cnn": small_cnn,
    "paper-cnn": paper_cnn,
    "resnet18": resnet18,
}
