"""What a defense may ask of a server beyond updates: clean data, and answers of the model."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


class MissingTrustedData(RuntimeError):
    """A defense asked for server-side data that this deployment does not have."""


class TrustedData:
    """Clean data at the server. Override the methods that your deployment can answer; the others raise an error.

    A result may depend on the arguments only: the same arguments give the same result. The simulator holds such samples
    out of the training set (`data.trusted`, `data.shared`), never out of the test set.
    """

    def update(self, params: Float[Tensor, " d"], seed: int) -> Float[Tensor, " d"]:
        """What an honest client holding this data would send; `seed` decides which batches it draws."""
        raise MissingTrustedData("this defense needs a server that can train on clean data")

    def predict(self, params: Float[Tensor, " d"]) -> tuple[Float[Tensor, "m c"], Int[Tensor, " m"]]:
        """A model's logits on this data, and the true labels."""
        raise MissingTrustedData("this defense needs a server that can test models on clean data")

    def predict_random(
        self, params: Float[Tensor, " d"], updates: Float[Tensor, "k d"], n: int, seed: int
    ) -> Float[Tensor, "1+k n c"]:
        """Logits of a model, and of it after each update, on the same `n` images of random pixels in [0, 1].

        It needs the model, and no data.
        """
        raise MissingTrustedData("this defense needs a server that can run models on random images")

    def guides(self, clients: Int[Tensor, " n"], params: Float[Tensor, " d"], seed: int) -> Float[Tensor, "n d"]:
        """What each of these clients would send if it trained on the sample of its data that the server has."""
        raise MissingTrustedData("this defense needs a sample of every client's data at the server")
