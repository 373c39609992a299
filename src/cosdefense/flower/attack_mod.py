"""A drill for one's own federation: a mod that makes a node malicious."""

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
from .arrays import NDArray, own_arrays

MEMORY = "cosdefense-red-team"  # the records in the node's state that hold the attack's


def red_team(attack: Attack, *, from_round: int = 1, head: str | None = None) -> RedTeam:
    """A mod for `ClientApp(mods=[…])`: from that round on, this node sends what the attack makes of its update.

    The honest app trains first. What it found, and the model that it was sent, is all the attacker knows: an attack
    that wants the honest mean (`InnerProduct`; `Camouflage`, then a sign flip by default) gets the node's own update
    in its place, one that multiplies by clients / attackers (`ExplicitBoosting`) multiplies by one, and those that
    look for room between honest clients (`TrimmedMeanPoisoning`, `KrumPoisoning`, `ALIE`, `MinMax`, `MinSum`,
    `Mimic`) see one client, which makes them all but harmless. `Adaptive` needs to be given the server's defense,
    and tries it on a round with that one client. An attack that climbs the loss gets the opposite of what was found
    by descending. How many steps are trained is the app's affair. Batches are out of a mod's reach: attacks that
    poison data need `RedTeam.poisoned` in the client's own training loop as well.
    """
    if from_round < 1:
        raise ValueError(f"from_round must be at least 1, got {from_round}")
    return RedTeam(attack, from_round, head)


@dataclass(frozen=True)
class RedTeam:
    """An attack as a mod; made by `red_team`."""

    attack: Attack
    from_round: int = 1
    head: str | None = None  # the classifier's weight matrix; None: the last matrix of the model

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        reply = call_next(message, context)
        asked_to_train = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not asked_to_train or reply.has_error() or not self.acts(message):
            return reply
        received, found = _only_arrays(message, "message"), _only_arrays(reply, "reply")
        key = next(iter(reply.content.array_records))
        reply.content[key] = self._forged(own_arrays(received), own_arrays(found), message, context)
        return reply

    def acts(self, message: Message) -> bool:
        """Whether the attack has begun."""
        return self.from_round == 1 or _round(message) >= self.from_round

    def poisoned(
        self,
        message: Message,
        images: Float[Tensor, "*batch channels height width"],
        labels: Int[Tensor, "*batch"],
        n_classes: int,
    ) -> tuple[Float[Tensor, "*batch channels height width"], Int[Tensor, "*batch"]]:
        """What the attack makes of a round's batches, once it has begun. Pixels are in [0, 1].

        To be called once a round, with the message that asked for training: leading dimensions are free.
        """
        if not self.acts(message):
            return images, labels
        rng = generator(message.metadata.dst_node_id, "poison", _round(message, 0))
        return self.attack.poison(images, labels, n_classes, rng)

    def _forged(
        self, start: dict[str, NDArray], found: dict[str, NDArray], message: Message, context: Context
    ) -> ArrayRecord:
        """The reply's arrays with the attack's update; integers, names and types as the app returned them."""
        layout = Layout.of(start, self.head)
        params = _flat(layout, start)
        update = _flat(layout, found) - params
        state = self._remembered(context)
        if self.attack.plan_training(params, layout, 1, state).ascend:
            update = -update
        client = torch.tensor([_signed(context.node_id)])
        seed = derive(context.node_id, "red team", _round(message, 0))
        cohort = Cohort.of(update[None], params, layout, client, seed=seed)
        forged, state = self.attack.forge(cohort, torch.tensor([True]), state)
        self._remember(context, state)
        named = layout.unflatten(params + forged[0])
        return ArrayRecord(
            {
                name: Array(named[name].numpy().astype(array.dtype) if name in named else array)
                for name, array in found.items()
            }
        )

    def _remembered(self, context: Context) -> State:
        if MEMORY not in context.state.config_records:
            return self.attack.init()
        tensors = {name: torch.from_numpy(a) for name, a in own_arrays(_tensors(context)).items()}
        packed = json.loads(str(context.state.config_records[MEMORY]["packed"]))
        return unpack(packed, tensors, self.attack.init())

    def _remember(self, context: Context, state: State) -> None:
        """A process lives for one message; what is to last goes into the node's state."""
        if state is None:
            return
        packed, tensors = pack(state)
        context.state[MEMORY] = ConfigRecord({"packed": json.dumps(packed)})
        context.state[f"{MEMORY}-tensors"] = ArrayRecord({k: Array(t.numpy()) for k, t in tensors.items()})


def _tensors(context: Context) -> ArrayRecord:
    return context.state.array_records[f"{MEMORY}-tensors"]


def _only_arrays(message: Message, where: str) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"red_team needs exactly one record of arrays in the {where}, got {len(records)}")
    return records[0]


def _round(message: Message, default: int | None = None) -> int:
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])  # type: ignore[arg-type]
    if default is None:
        raise ValueError("from_round needs a strategy that sends server-round in its config, as Flower's do")
    return default


def _flat(layout: Layout, arrays: dict[str, NDArray]) -> Tensor:
    """Half precision is computed in single: −5 times an update may not fit it on the way."""
    wide = any(array.dtype == np.float64 for array in arrays.values())
    known: dict[str, Any] = {name: arrays[name] for name, _ in layout.shapes if name in arrays}
    return layout.flatten(known).to(torch.float64 if wide else torch.float32)


def _signed(node: int) -> int:
    """Identities have 64 bits without a sign; a tensor's have one."""
    return node - 2**64 if node >= 2**63 else node
