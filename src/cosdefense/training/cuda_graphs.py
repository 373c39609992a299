"""One client's training, recorded once as a CUDA graph and replayed for every client of every round.

A step of a small network is hundreds of tiny kernels, and launching them one by one takes longer than running them.
Each recording has its own memory and stream; several recordings keep a large GPU busy.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Train = Callable[[Tensor, Tensor, Tensor], Tensor]  # (params, images, labels) of one client → its update

MAX_RECORDINGS = 4  # one leaves a large GPU half idle with a small network; each takes memory for a whole step
WARM_UP = 2  # runs before recording: libraries choose their kernels and allocate their workspaces


class Recording:
    """A CUDA graph of one client's training. It refers to the memory that was recorded, not to the task."""

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

    def replay(self, out: Tensor, *inputs: Tensor) -> None:
        """Start one client's training. Its update is in `out` once the stream has reached that point."""
        with torch.cuda.stream(self.stream):
            for recorded, given in zip(self._inputs, inputs, strict=True):
                recorded.copy_(given)
            self._graph.replay()
            out.copy_(self._update)


Recordings = dict[object, list[Recording] | None]  # by settings; None: training that must not be replayed
_recordings: WeakKeyDictionary[object, Recordings] = WeakKeyDictionary()  # by owner


def train_with_graphs(
    owner: object,
    key: object,
    train: Train,
    params: Float[Tensor, " d"],
    images: Shaped[Tensor, "n steps b *shape"],
    labels: Shaped[Tensor, "n steps b *targets"],
) -> Float[Tensor, "n d"]:
    """Run `train` for every client. Recordings are reused for the same owner and key, and released with the owner.

    Training that uses random numbers (dropout) is not replayed: all recordings would share one generator state.
    """
    updates = params.new_empty(len(images), len(params))
    settings = (key, images.shape[1:], images.dtype, torch.backends.cudnn.allow_tf32)
    recordings_of_owner = _recordings.setdefault(owner, {})
    if settings not in recordings_of_owner:
        is_random = _uses_random_numbers(train, params, images[0], labels[0])
        recordings_of_owner[settings] = None if is_random else []
    recordings = recordings_of_owner[settings]
    if recordings is None:
        for i in range(len(images)):
            updates[i] = train(params, images[i], labels[i])
        return updates
    _record_more(recordings, len(images), train, params, images[0], labels[0])
    current = torch.cuda.current_stream(params.device)
    for recording in recordings:
        recording.stream.wait_stream(current)
    for i in range(len(images)):
        recordings[i % len(recordings)].replay(updates[i], params, images[i], labels[i])
    for recording in recordings:
        current.wait_stream(recording.stream)
    return updates


def _uses_random_numbers(train: Train, *inputs: Tensor) -> bool:
    """Train once and see whether the generator moved. Its state is restored."""
    device = inputs[0].device
    before = torch.cuda.get_rng_state(device)
    train(*inputs)
    moved = not torch.equal(before, torch.cuda.get_rng_state(device))
    torch.cuda.set_rng_state(before, device)
    return moved


def _record_more(recordings: list[Recording], n_clients: int, train: Train, *inputs: Tensor) -> None:
    """Make at least one recording, and more while clients can use them and memory is plentiful."""
    device = inputs[0].device
    while len(recordings) < min(n_clients, MAX_RECORDINGS):
        if recordings and torch.cuda.mem_get_info(device)[0] < 4 * MAX_RECORDINGS * recordings[-1].memory:
            return
        recordings.append(Recording(train, *inputs))
