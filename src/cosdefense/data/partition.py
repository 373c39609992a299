"""How the training samples are split among the clients. No sample is given to two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

Owners = Int[Tensor, " _"]  # for every sample, the client that owns it

OTHERS = 'choose partition = { name = "iid" } or { name = "quantity-skew" }'


class Partition(ABC):
    """A way to split: a frozen dataclass of its options."""

    needs_classes: ClassVar[bool] = True
    keeps_owners: ClassVar[bool] = False  # whether clients are those that the data name

    @abstractmethod
    def assign(self, labels: Int[Tensor, " m"], n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        """The owner of every sample."""

    def __call__(
        self, labels: Tensor, n_classes: int, n_clients: int, seed: int, owners: Owners | None = None
    ) -> list[Int[Tensor, " _"]]:
        """Split the samples: the rows of every client, at least one each.

        `n_classes` is 0 where the labels are values. `owners` is the client of every sample, where the data say so.
        """
        if self.needs_classes and (n_classes == 0 or labels.ndim != 1):
            raise ValueError(f"{type(self).__name__} needs one class per sample, found other targets: {OTHERS}")
        if not 1 <= n_clients <= len(labels):
            raise ValueError(f"{len(labels)} samples can be split among 1 to {len(labels)} clients, not {n_clients}")
        rng = np.random.default_rng(seed)
        assigned = _fill_empty_clients(self.assign(labels, n_classes, n_clients, rng), n_clients)
        return [(assigned == client).nonzero().flatten() for client in range(n_clients)]


@dataclass(frozen=True)
class Iid(Partition):
    """Shuffled and dealt out evenly."""

    needs_classes: ClassVar[bool] = False

    def assign(self, labels: Tensor, n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        return _deal(len(labels), n_clients, rng)


@dataclass(frozen=True)
class LabelSkew(Partition):
    """The paper's split: one group of clients per class; a sample goes to its class's group with probability q.

    To each other group it goes with probability (1 − q) / (C − 1). Inside a group samples are dealt
    out evenly. q = 1/C is iid. (The paper prints (1 − q) / (1 − C): a slip.)
    Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. 2020.
    """

    q: float = 0.5  # how much of a class stays in its own group

    def __post_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise ValueError(f"q must be in [0, 1], got {self.q}")

    def assign(self, labels: Int[Tensor, " m"], n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        if n_clients < n_classes:
            raise ValueError(
                f"label skew needs at least one client per class ({n_classes}), got {n_clients}: choose "
                'partition = { name = "dirichlet" } or { name = "iid" }'
            )
        stays = rng.random(len(labels)) < self.q
        # An offset of 1 … C−1 from the own group hits every other group alike.
        offset = np.where(stays, 0, rng.integers(1, n_classes, len(labels)) if n_classes > 1 else 0)
        group = (labels.numpy() + offset) % n_classes
        members = np.array_split(rng.permutation(n_clients), n_classes)
        owners = np.empty(len(labels), dtype=np.int64)
        for number, clients in enumerate(members):
            inside = rng.permutation(np.flatnonzero(group == number))
            owners[inside] = clients[np.arange(len(inside)) % len(clients)]
        return torch.from_numpy(owners)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Every class is divided among the clients in proportions drawn from Dirichlet(alpha).

    Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification. 2019. https://arxiv.org/abs/1909.06335
    """

    alpha: float = 0.5  # small: few clients share a class; large: iid

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")

    def assign(self, labels: Int[Tensor, " m"], n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        owners = np.empty(len(labels), dtype=np.int64)
        for label in range(n_classes):
            inside = rng.permutation(np.flatnonzero(labels.numpy() == label))
            shares = rng.dirichlet(np.full(n_clients, self.alpha))
            cuts = (np.cumsum(shares)[:-1] * len(inside)).round().astype(np.int64)
            for client, samples in enumerate(np.split(inside, cuts)):
                owners[samples] = client
        return torch.from_numpy(owners)


@dataclass(frozen=True)
class Shards(Partition):
    """Sorted by label, cut into equal shards, a few shards to each client.

    McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
    from Decentralized Data. AISTATS 2017.
    """

    per_client: int = 2  # about how many classes a client sees

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"per_client must be at least 1, got {self.per_client}")

    def assign(self, labels: Int[Tensor, " m"], n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        shuffled = rng.permutation(len(labels))  # so that equal labels are not always in file order
        by_label = shuffled[np.argsort(labels.numpy()[shuffled], kind="stable")]
        shards = np.array_split(by_label, n_clients * self.per_client)
        owners = np.empty(len(labels), dtype=np.int64)
        for place, shard in enumerate(rng.permutation(len(shards))):
            owners[shards[shard]] = place % n_clients
        return torch.from_numpy(owners)


@dataclass(frozen=True)
class QuantitySkew(Partition):
    """Shuffled, and dealt out in shares drawn from Dirichlet(alpha): clients differ in how many samples they have.

    Li, Diao, Chen, He. Federated Learning on Non-IID Data Silos: An Experimental Study. ICDE 2022.
    https://arxiv.org/abs/2102.02079
    """

    needs_classes: ClassVar[bool] = False

    alpha: float = 0.5  # small: few clients have nearly everything; large: all have as much

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")

    def assign(self, labels: Tensor, n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        order, shares = rng.permutation(len(labels)), rng.dirichlet(np.full(n_clients, self.alpha))
        cuts = (np.cumsum(shares)[:-1] * len(labels)).round().astype(np.int64)
        owners = np.empty(len(labels), dtype=np.int64)
        for client, samples in enumerate(np.split(order, cuts)):
            owners[samples] = client
        return torch.from_numpy(owners)


@dataclass(frozen=True)
class ByClient(Partition):
    """As the data say: each hospital, device or writer is a client, with its own samples.

    With fewer clients than the data have, so many of them are drawn at random, and the others do not take part.
    """

    needs_classes: ClassVar[bool] = False
    keeps_owners: ClassVar[bool] = True

    def __call__(
        self, labels: Tensor, n_classes: int, n_clients: int, seed: int, owners: Owners | None = None
    ) -> list[Int[Tensor, " _"]]:
        if owners is None:
            raise ValueError("by-client needs data that say whose each sample is: name the column, client = …")
        known = sorted(set(owners.tolist()))
        if not 1 <= n_clients <= len(known):
            raise ValueError(f"the samples belong to {len(known)} clients: choose 1 to {len(known)}, not {n_clients}")
        chosen = choose_owners(len(known), n_clients, seed)
        return [(owners == known[client]).nonzero().flatten() for client in chosen]

    def assign(self, labels: Tensor, n_classes: int, n_clients: int, rng: np.random.Generator) -> Owners:
        raise NotImplementedError("the data say whose each sample is")


def choose_owners(n_known: int, n_clients: int, seed: int) -> list[int]:
    """Which of the data's clients take part, in their order."""
    if n_clients == n_known:
        return list(range(n_known))
    return sorted(np.random.default_rng(seed).permutation(n_known)[:n_clients].tolist())


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "label-skew": LabelSkew,
    "dirichlet": Dirichlet,
    "shards": Shards,
    "quantity-skew": QuantitySkew,
    "by-client": ByClient,
}


def _deal(n_samples: int, n_clients: int, rng: np.random.Generator) -> Owners:
    owners = np.empty(n_samples, dtype=np.int64)
    owners[rng.permutation(n_samples)] = np.arange(n_samples) % n_clients
    return torch.from_numpy(owners)


def _fill_empty_clients(owners: Owners, n_clients: int) -> Owners:
    """Give clients that got no samples one from the client that has most."""
    owners, counts = owners.clone(), torch.bincount(owners, minlength=n_clients)
    for client in (counts == 0).nonzero().flatten().tolist():
        largest = int(counts.argmax())
        owners[(owners == largest).nonzero()[0]] = client
        counts[largest] -= 1
        counts[client] += 1
    return owners
