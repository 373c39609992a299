"""A Flower mod that makes a client malicious, to test the defense of your own federation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from jaxtyping import Float, Int
from torch import Tensor

from ..attacks import Attack
from ..core import Cohort, Layout, State, derive, generator, pack, unpack
from .arrays import NDArray, to_numpy
from .node_ids import to_signed

STATE_KEY = "cosdefense-attack"  # the records of the node's context that hold the state of the attack


@dataclass(frozen=True)
class MaliciousClient:
    """A mod for `ClientApp(mods=[MaliciousClient(attack)])`: the client sends the update that the attack forges.

    The app trains first. Its update and the global model are all that the attacker knows:

    * An attack that uses the mean of the honest updates (`InnerProduct`, `Camouflage`) gets this client's own update
      in its place.
    * `ExplicitBoosting`, which multiplies by clients / attackers, multiplies by one.
    * Attacks that use the spread of the honest updates (`TrimmedMeanPoisoning`, `KrumPoisoning`, `ALIE`, `MinMax`,
      `MinSum`, `Mimic`) see a single client, which makes them nearly harmless.
    * `Adaptive` must be given the defense of the server. It tries it on a cohort of this one client.
    * An attack that ascends the loss gets the negated update.
    * Attacks that need only the global model or this client's own update (`MPAF`, `PoisonedFL`, `ZeroUpdates`,
      `PoisonedBuffers`) are as strong as in the simulator. `OptimizedTrigger` does not see the model and keeps its
      first trigger. `DBA` needs its `part`.

    A mod cannot change training data. Attacks that poison data also need a call of `poison` in the training loop of
    the app.
    """

    attack: Attack
    from_round: int = 1  # the client is honest before this round
    head: str | None = None  # name of the classifier's weight matrix; None: the last matrix of the model

    def __post_init__(self) -> None:
        if self.from_round < 1:
            raise ValueError(f"from_round must be at least 1, got {self.from_round}")

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        is_training = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_training or reply.has_error() or not self.is_active(message):
            return reply
        start, trained = _get_arrays(message, "message"), _get_arrays(reply, "reply")
        key = next(iter(reply.content.array_records))
        reply.content[key] = self._forge(to_numpy(start), to_numpy(trained), message, context)
        return reply

    def is_active(self, message: Message) -> bool:
        """Whether the client attacks in the round of this message."""
        return self.from_round == 1 or _get_round(message) >= self.from_round

    def poison(
        self,
        message: Message,
        images: Float[Tensor, "*batch channels height width"],
        labels: Int[Tensor, "*batch"],
        n_classes: int,
    ) -> tuple[Float[Tensor, "*batch channels height width"], Int[Tensor, "*batch"]]:
        """Poison the training data of a round. Pixels are in [0, 1].

        Call it once per round with the message that asks for training. The images may have any leading dimensions.
        """
        if not self.is_active(message):
            return images, labels
        rng = generator(message.metadata.dst_node_id, "poison", _get_round(message, 0))
        return self.attack.poison(images, labels, n_classes, rng)

    def _forge(
        self, start: dict[str, NDArray], trained: dict[str, NDArray], message: Message, context: Context
    ) -> ArrayRecord:
        """The arrays of the reply with the forged update. Names, dtypes and integer arrays stay unchanged."""
        layout = Layout.of(start, self.head)
        params = _flatten(layout, start)
        update = _flatten(layout, trained) - params
        state = self._load_state(context)
        if self.attack.plan_training(params, layout, 1, state).ascend:
            update = -update
        client = torch.tensor([to_signed(context.node_id)])
        seed = derive(context.node_id, "red team", _get_round(message, 0))
        cohort = Cohort.of(update[None], params, layout, client, seed=seed)
        forged, state = self.attack.forge(cohort, torch.tensor([True]), state)
        self._save_state(context, state)
        tensors = layout.unflatten(params + forged[0])
        return ArrayRecord(
            {
                name: Array(tensors[name].numpy().astype(array.dtype) if name in tensors else array)
                for name, array in trained.items()
            }
        )

    def _load_state(self, context: Context) -> State:
        if STATE_KEY not in context.state.config_records:
            return self.attack.init()
        record = context.state.array_records[f"{STATE_KEY}-tensors"]
        tensors = {name: torch.from_numpy(array) for name, array in to_numpy(record).items()}
        packed = json.loads(str(context.state.config_records[STATE_KEY]["packed"]))
        return unpack(packed, tensors, self.attack.init())

    def _save_state(self, context: Context, state: State) -> None:
        """Flower starts a new process for every message; only the context of the node is kept between them."""
        if state is None:
            return
        packed, tensors = pack(state)
        context.state[STATE_KEY] = ConfigRecord({"packed": json.dumps(packed)})
        context.state[f"{STATE_KEY}-tensors"] = ArrayRecord({k: Array(t.numpy()) for k, t in tensors.items()})


def _get_arrays(message: Message, source: str) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"MaliciousClient needs exactly one record of arrays in the {source}, got {len(records)}")
    return records[0]


def _get_round(message: Message, default: int | None = None) -> int:
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])  # type: ignore[arg-type]
    if default is None:
        raise ValueError("from_round needs a strategy that sends server-round in its config, as Flower's do")
    return default


def _flatten(layout: Layout, arrays: dict[str, NDArray]) -> Tensor:
    """One vector, in at least single precision: −5 times an update may overflow half precision."""
    dtype = torch.float64 if any(array.dtype == np.float64 for array in arrays.values()) else torch.float32
    known: dict[str, Any] = {name: arrays[name] for name, _ in layout.shapes if name in arrays}
    return layout.flatten(known).to(dtype)
