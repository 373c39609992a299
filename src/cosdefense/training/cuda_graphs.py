"""One client's training, recorded once as a CUDA graph and replayed for every client of every round.

A step of a small network is hundreds of tiny kernels, and starting them one by one takes longer than running
them. A lane is a recording with memory and a stream of its own; several lanes keep a large GPU busy.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

Train = Callable[[Tensor, Tensor, Tensor], Tensor]  # of start, images and labels of one client

MAX_LANES = 4  # one leaves a large GPU half idle with a small network; each takes memory for a whole step
WARM_UP = 2  # runs before recording: libraries choose their kernels and take their workspaces


class Lane:
    """A recording. It keeps no reference to what was recorded, only to the memory."""

    def __init__(self, train: Train, params: Tensor, images: Tensor, labels: Tensor) -> None:
        before = torch.cuda.memory_reserved(params.device)
        self.stream = torch.cuda.Stream(params.device)  # type: ignore[no-untyped-call]
        self._inputs = (params.clone(), images.clone(), labels.clone())
        self.stream.wait_stream(torch.cuda.current_stream(params.device))
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                train(*self._inputs)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self.stream):
            self._update = train(*self._inputs)
        self.memory = torch.cuda.memory_reserved(params.device) - before  # bytes that it took

    def __call__(self, out: Tensor, *inputs: Tensor) -> None:
        """Start one client's training; `out` holds its update once the stream has come so far."""
        with torch.cuda.stream(self.stream):
            for mine, theirs in zip(self._inputs, inputs, strict=True):
                mine.copy_(theirs)
            self._graph.replay()
            out.copy_(self._update)


_recorded: WeakKeyDictionary[object, dict[object, list[Lane] | None]] = WeakKeyDictionary()  # None: not to be replayed


def train_with_graphs(
    owner: object,
    key: object,
    train: Train,
    params: Float[Tensor, " d"],
    images: Float[Tensor, "n steps b *shape"],
    labels: Int[Tensor, "n steps b"],
) -> Float[Tensor, "n d"]:
    """`train` for every client. What was recorded for this owner and key is used again, and goes with the owner.

    Training that draws at random (dropout) runs as it is: recordings would share one state of the generator.
    """
    updates = params.new_empty(len(images), len(params))
    settings = (key, images.shape[1:], images.dtype, torch.backends.cudnn.allow_tf32)
    known = _recorded.setdefault(owner, {})
    if settings not in known:
        known[settings] = None if _draws(train, params, images[0], labels[0]) else []
    lanes = known[settings]
    if lanes is None:
        for i in range(len(images)):
            updates[i] = train(params, images[i], labels[i])
        return updates
    _record(lanes, len(images), train, params, images[0], labels[0])
    now = torch.cuda.current_stream(params.device)
    for lane in lanes:
        lane.stream.wait_stream(now)
    for i in range(len(images)):
        lanes[i % len(lanes)](updates[i], params, images[i], labels[i])
    for lane in lanes:
        now.wait_stream(lane.stream)
    return updates


def _draws(train: Train, *inputs: Tensor) -> bool:
    """Whether training moves the generator; it is left as it was."""
    device = inputs[0].device
    before = torch.cuda.get_rng_state(device)
    train(*inputs)
    moved = not torch.equal(before, torch.cuda.get_rng_state(device))
    torch.cuda.set_rng_state(before, device)
    return moved


def _record(lanes: list[Lane], n: int, train: Train, *inputs: Tensor) -> None:
    """As many lanes as are of use, the first in any case; more only where memory is plentiful."""
    device = inputs[0].device
    while len(lanes) < min(n, MAX_LANES):
        if lanes and torch.cuda.mem_get_info(device)[0] < 4 * MAX_LANES * lanes[-1].memory:
            return
        lanes.append(Lane(train, *inputs))
