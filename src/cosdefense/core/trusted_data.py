"""Clean data that a server may hold, as far as a defense may ask about it."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


class MissingTrustedData(RuntimeError):
    """A defense asked for server-side data that this deployment does not have."""


class TrustedData:
    """What a defense may ask of clean data at the server. A deployment overrides what it has; the rest is refused.

    Nothing here may depend on anything but the arguments: the same question gets the same answer.
    """

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        """What an honest client holding this data would send; `seed` decides which batches it draws."""
        raise MissingTrustedData("this defense needs a server that can train on clean data of its own")

    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        """What a model answers to this data (logits), and what would have been right."""
        raise MissingTrustedData("this defense needs a server that can test models on clean data of its own")

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        """What each of these clients would send if it trained on the sample of its data that it once shared."""
        raise MissingTrustedData("this defense needs a sample of every client's data at the server")
