"""The training of several clients, recorded once as a CUDA graph and replayed in every round.

A step of a small network is hundreds of tiny kernels, and launching them one by one takes longer than running them.
The clients of a graph are independent: they run side by side on several streams, which keeps a large GPU busy. Each
client has the same kernels as if it trained alone, so the bits are the same however many train together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

Train = Callable[[Tensor, Tensor, Tensor], Tensor]  # (params, images, labels) of one client → its update

MAX_CLIENTS = 16  # of one graph; more clients are several replays
MAX_STREAMS = 8  # each takes memory for a whole step
WARM_UP = 2  # runs before recording: libraries choose their kernels and allocate their workspaces


class ClientGraphs:
    """One graph for each number of clients. They refer to memory of their own, not to the task."""

    def __init__(self, train: Train, params: Tensor, images: Tensor, labels: Tensor) -> None:
        """Images and labels are those of one client."""
        self._params = params.clone()
        self._images, self._labels = _allocate_like(images), _allocate_like(labels)
        self._updates = params.new_empty(MAX_CLIENTS, len(params))
        self._graphs = dict[int, torch.cuda.CUDAGraph]()
        self._n_streams = 1
        before = torch.cuda.memory_reserved(params.device)
        self._load(params, images[None], labels[None])
        self._record(1, train)
        memory = torch.cuda.memory_reserved(params.device) - before  # bytes that a step takes
        free, _ = torch.cuda.mem_get_info(params.device)
        self._n_streams = max(1, min(MAX_STREAMS, free // max(1, 8 * memory)))

    def replay(self, out: Tensor, train: Train, params: Tensor, images: Tensor, labels: Tensor) -> None:
        """Compute the updates of at most `MAX_CLIENTS` clients. They are recorded first if so many are new."""
        self._load(params, images, labels)
        if len(images) not in self._graphs:
            self._record(len(images), train)
        self._graphs[len(images)].replay()
        out.copy_(self._updates[: len(images)])

    def _load(self, params: Tensor, images: Tensor, labels: Tensor) -> None:
        self._params.copy_(params)
        self._images[: len(images)].copy_(images)
        self._labels[: len(labels)].copy_(labels)

    def _record(self, n: int, train: Train) -> None:
        main, *streams = _get_streams(self._params.device)[: 1 + min(n, self._n_streams)]

        def train_client(i: int) -> None:
            with torch.cuda.stream(streams[i % len(streams)]):
                self._updates[i].copy_(train(self._params, self._images[i], self._labels[i]))

        main.wait_stream(torch.cuda.current_stream(self._params.device))
        for stream in streams:
            stream.wait_stream(main)
        for _ in range(WARM_UP):
            for i in range(len(streams)):
                train_client(i)
        first = next(iter(self._graphs.values()), None)  # all share its memory: only one is replayed at a time
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=main, pool=None if first is None else first.pool()):
            for stream in streams:
                stream.wait_stream(main)
            for i in range(n):
                train_client(i)
            for stream in streams:
                main.wait_stream(stream)
        self._graphs[n] = graph


_graphs: WeakKeyDictionary[object, dict[object, ClientGraphs | None]] = WeakKeyDictionary()  # by owner and settings


def train_with_graphs(
    owner: object,
    key: object,
    train: Train,
    params: Float[Tensor, " d"],
    images: Float[Tensor, "n steps b *shape"],
    labels: Int[Tensor, "n steps b"],
) -> Float[Tensor, "n d"]:
    """Run `train` for every client. Graphs are reused for the same owner and key, and released with the owner.

    Training that uses random numbers (dropout) is not replayed: all graphs would share one generator state.
    """
    updates = params.new_empty(len(images), len(params))
    settings = (key, images.shape[1:], images.dtype, torch.backends.cudnn.allow_tf32)
    graphs_of_owner = _graphs.setdefault(owner, {})
    if settings not in graphs_of_owner:
        is_random = _uses_random_numbers(train, params, images[0], labels[0])
        graphs_of_owner[settings] = None if is_random else ClientGraphs(train, params, images[0], labels[0])
    graphs = graphs_of_owner[settings]
    if graphs is None:
        for i in range(len(images)):
            updates[i] = train(params, images[i], labels[i])
        return updates
    for start in range(0, len(images), MAX_CLIENTS):
        some = slice(start, start + MAX_CLIENTS)
        graphs.replay(updates[some], train, params, images[some], labels[some])
    return updates


def _uses_random_numbers(train: Train, *inputs: Tensor) -> bool:
    """Train once and see whether the generator moved. Its state is restored."""
    device = inputs[0].device
    before = torch.cuda.get_rng_state(device)
    train(*inputs)
    moved = not torch.equal(before, torch.cuda.get_rng_state(device))
    torch.cuda.set_rng_state(before, device)
    return moved


def _allocate_like(one: Tensor) -> Tensor:
    """Room for as many of these as a graph has clients, each arranged in memory as this one is."""
    return torch.empty_strided(
        (MAX_CLIENTS, *one.shape), (one.numel(), *one.stride()), dtype=one.dtype, device=one.device
    ).zero_()


@cache
def _get_streams(device: torch.device) -> list[torch.cuda.Stream]:
    """One to record on, and those of the clients. All graphs use the same: libraries keep a workspace per stream."""
    return [torch.cuda.Stream(device) for _ in range(1 + MAX_STREAMS)]  # type: ignore[no-untyped-call]
