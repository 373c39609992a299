"""Flower federations inside one process whose clients send reports: real mods, real messages, a helper as an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from federations import NODES as ALL_NODES
from federations import PARSING, Arrays, LocalGrid, content, model, record, reply, to_arrays, trained
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from cosdefense import Cohort, Defense, Layout
from cosdefense.aggregators import Mean
from cosdefense.core import derive
from cosdefense.filters import CosDefense
from cosdefense.flower import Defended, secure_mod
from cosdefense.flower.node_ids import to_signed
from cosdefense.secure import Secure
from cosdefense.secure.helper import Helper
from cosdefense.secure.keys import make_signing_key
from cosdefense.secure.policy import Policy

NODES = ALL_NODES[:6]
MILD = CosDefense(threshold="mean+std")  # accepts most clients
RUN_CONFIG: dict[str, Any] = {"learning-rate": 0.1, "seed": 7}
SEED = 3
App = Callable[[Message, Context], Message]
Training = Callable[[Arrays, int, int], Arrays]  # from the global model, the node and the round


def make_context(node: int, config: dict[str, Any] | None = None, run_config: dict[str, Any] = RUN_CONFIG) -> Context:
    return Context(run_id=1, node_id=node, node_config=config or {}, state=RecordDict(), run_config=dict(run_config))


def make_app(training: Training) -> App:
    """An app that knows nothing of secure aggregation."""

    def train(message: Message, context: Context) -> Message:
        assert "cosdefense-secure" not in message.content.config_records
        arrays = to_arrays(message.content["arrays"])
        number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        return reply(message, content(training(arrays, context.node_id, number), {"loss": 1.0, "num-examples": 7}))

    return train


train = make_app(trained)  # of an honest client


def train_twin(
    defense: Secure, nodes: Sequence[Sequence[int]], trainings: Mapping[int, Training] | None = None
) -> tuple[bytes, list[list[int]]]:
    """The model after rounds in which these nodes took part, without cryptography, and who was accepted in each."""
    arrays, twin, state = dict(model()), defense.plain, defense.init()
    layout, accepted = Layout.of(arrays), []
    for number, present in enumerate(nodes, start=1):
        params = layout.flatten(arrays)
        moved = [(trainings or {}).get(node, trained)(arrays, node, number) for node in present]
        rows = torch.stack([layout.flatten(dict(one)) - params for one in moved])
        clients = torch.tensor([to_signed(node) for node in present])
        cohort = Cohort.of(rows, params, layout, clients, seed=derive(SEED, "defense", number))
        verdict, state = twin(cohort, state)
        assert verdict.skipped is None
        accepted.append([node for node, weight in zip(present, verdict.weights.tolist(), strict=True) if weight])
        arrays |= {name: value.numpy() for name, value in layout.unflatten(params + verdict.update).items()}
    return to_bytes(record(arrays)), accepted


@dataclass
class Federation:
    """Nodes with keys, and the helper that knows them."""

    folder: Path
    policy: Policy = Policy(norms=True)
    nodes: Sequence[int] = NODES
    apps: dict[int, App] = field(default_factory=dict)  # of nodes that are not honest
    changes: dict[int, dict[str, Any]] = field(default_factory=dict)  # of nodes' configurations
    after: Callable[[Message], Message | None] = lambda answer: answer

    def __post_init__(self) -> None:
        roster = [bytes.fromhex(make_signing_key(self.folder / f"{node}.pem")) for node in self.nodes]
        self.identity = Ed25519PrivateKey.generate()
        self.roster, self.replies = frozenset(roster), list[Message]()
        self.helper = self.restart()

    def restart(self) -> Helper:
        """The helper as a new process would load it."""
        self.helper = Helper(self.identity, self.roster, self.policy, self.folder / "helper.state")
        return self.helper

    def behave(self, message: Message) -> Message | None:
        """What the SuperNode does with a message."""
        node = message.metadata.dst_node_id
        config = {"secure-key": str(self.folder / f"{node}.pem"), "secure-helper": self.helper.public_key.hex()}
        config |= self.changes.get(node, {})
        app = ClientApp(mods=[secure_mod])
        app.train()(self.apps.get(node, train))
        received = make_message(message.metadata, content=RecordDict(dict(message.content)))
        with PARSING:
            answer = app(received, make_context(node, config))
        body = None if answer.has_error() else answer.content
        answer = reply(message, body, answer.error if answer.has_error() else None)
        self.replies.append(answer)
        return self.after(answer)

    def grid(self) -> LocalGrid:
        return LocalGrid(self.behave, self.nodes)


def secure(**options: Any) -> Secure:
    return Secure(Defense((MILD,), Mean()), **{"colluders": 0.0, **options})


def fedavg(**options: Any) -> FedAvg:
    n = len(NODES)
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n, **options)


def defend(federation: Federation, defense: Defense | None = None, **options: Any) -> Defended:
    helper = options.pop("helper", federation.helper)
    return Defended(fedavg(), defense or secure(), helper=helper, seed=SEED, **{"run_config": RUN_CONFIG, **options})


def start(seed: int = 0) -> ArrayRecord:
    return record(model(seed))


def to_bytes(arrays: ArrayRecord) -> bytes:
    return b"".join(np.ascontiguousarray(array).tobytes() for array in to_arrays(arrays).values())
