"""Token ids and a small transformer: a dataset and a model that an experiment names as "module:function"."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cosdefense.data import Dataset, split_dataset

AUTHORS = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")


def messages(n: int = 600, length: int = 12, vocabulary: int = 20) -> Dataset:
    """Made-up messages of six authors. A message is urgent if word 1 stands in it before word 2.

    Every author prefers other words: the clients differ in their inputs, not only in their labels.
    """
    rng = torch.Generator().manual_seed(0)
    owners = torch.arange(n) % len(AUTHORS)
    shift = torch.randint(0, vocabulary, (len(AUTHORS),), generator=rng)
    tokens = (torch.randint(3, vocabulary // 2, (n, length), generator=rng) + shift[owners, None]) % (
        vocabulary - 3
    ) + 3
    places = torch.rand(n, length, generator=rng).argsort(dim=1)[:, :2]
    tokens.scatter_(1, places, torch.tensor([[1, 2]]).expand(n, 2).contiguous())
    urgent = (places[:, 0] < places[:, 1]).long()
    return split_dataset("messages", tokens, urgent, classes=("other", "urgent"), clients=AUTHORS, owners=owners)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.normalize = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.query_key_value(self.normalize(hidden)).chunk(3, dim=-1)
        hidden = hidden + scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.mix(hidden)
        return hidden + mixed


class Transformer(nn.Module):
    def __init__(self, length: int, n_outputs: int, vocabulary: int, width: int, n_blocks: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(n_blocks)))
        self.head = nn.Linear(width, n_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.blocks(self.words(tokens) + self.places).mean(dim=1))
        return outputs


def transformer(
    shape: tuple[int, ...], n_outputs: int, vocabulary: int = 20, width: int = 16, n_blocks: int = 2
) -> nn.Module:
    """`shape` and `n_outputs` come from the data, the rest from the experiment."""
    return Transformer(shape[0], n_outputs, vocabulary, width, n_blocks)
