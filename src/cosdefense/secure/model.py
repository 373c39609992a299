"""The parts of a model that are treated differently: the head, the other weights, the buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core import Layout
from .encoding import Encoded, Floats, encode, encode_public_head, shorten, unit_exponent
from .helper import model_digest
from .streams import digest
from .terms import Terms


@dataclass(frozen=True)
class ModelParts:
    """Where the parts are in a vector of the layout.

    Args:
        layout: The model's.
        layer: The tensor that CosDefense looks at. None: there is no head.
    """

    layout: Layout
    layer: str | None

    @property
    def head(self) -> slice:
        return slice(0, 0) if self.layer is None else self.layout.slices[self.layer]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Coordinates of head, other weights and buffers."""
        head = self.head.stop - self.head.start
        return head, self.layout.n_trainable - head, self.layout.size - self.layout.n_trainable

    def split(self, vector: Floats) -> tuple[Floats, Floats, Floats]:
        """Head, other weights, buffers."""
        head, n = self.head, self.layout.n_trainable
        return vector[head], np.concatenate([vector[: head.start], vector[head.stop : n]]), vector[n:]

    def join(self, head: Floats, weights: Floats, buffers: Floats) -> Floats:
        start = self.head.start
        return np.concatenate([weights[:start], head, weights[start:], buffers])

    def theta(self, params: Tensor) -> list[int]:
        """The global head as integers."""
        return encode_public_head(to_floats(params[self.head]))

    def head_bytes(self, params: Tensor) -> bytes:
        return to_floats(params[self.head]).astype("<f8").tobytes()

    def rest_digest(self, params: Tensor) -> bytes:
        """A digest of everything but the head, and of the model's form."""
        _, weights, buffers = self.split(to_floats(params))
        form = repr((self.layout.shapes, self.layer, self.layout.n_trainable)).encode()
        return digest("rest of the model", form, weights.tobytes(), buffers.tobytes())

    def digest(self, params: Tensor) -> bytes:
        return model_digest(self.head_bytes(params), self.rest_digest(params))

    def encode(self, update: Tensor, theta: list[int], terms: Terms) -> Encoded:
        """A client's update in integers, clipped as the terms say."""
        values = to_floats(update)
        if not np.isfinite(values).all():
            raise ValueError("an update must be finite")
        n = self.layout.n_trainable
        trainable, buffers = shorten(values[:n], values[n:], terms)
        weights = np.concatenate([trainable[: self.head.start], trainable[self.head.stop :]])
        return encode(trainable[self.head], weights, buffers, theta, terms)

    def buffer_units(self, params: Tensor) -> tuple[tuple[int, int], ...]:
        """A power of two for each tensor of buffers: the scale on which its values are expected to change.

        It is the root mean square of the tensor in the global model. A running mean may be zero (it starts there); its
        scale is at least the standard deviation that the running variance beside it says.
        """
        values, units = self.layout.unflatten(params), []
        for name, shape in self.layout.shapes:
            if name in self.layout.trainable:
                continue
            scale = _root_mean_square(values[name])
            variance = name.removesuffix("running_mean") + "running_var"
            if name.endswith("running_mean") and variance in values:
                scale = max(scale, math.sqrt(_root_mean_square(values[variance])))
            units.append((math.prod(shape), unit_exponent(scale)))
        return tuple(units)


def to_floats(values: Tensor) -> Floats:
    """In float64, on the CPU."""
    found: Floats = values.detach().double().cpu().numpy()
    return found


def _root_mean_square(values: Tensor) -> float:
    return float(np.sqrt(np.square(to_floats(values)).mean())) if values.numel() else 0.0
