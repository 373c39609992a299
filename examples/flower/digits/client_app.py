"""What a node does: train on its own digits. In a drill, some lie about it."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from cosdefense.catalog.registry import build_attack
from cosdefense.flower import red_team
from cosdefense.flower.attack_mod import RedTeam

from .task import N_CLASSES, network, train, training_set

SILENCE = 600.0  # seconds; longer than any deadline


def drill(context: Context) -> RedTeam | None:
    """The attack of a node that was started with `--node-config 'red-team="inner-product" …'`."""
    name = context.node_config.get("red-team")
    return red_team(build_attack({"name": name})) if name and context.run_config["drill"] else None


def lie(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod that lets only those nodes lie. An app without drills has no use for it."""
    if context.node_config.get("silent"):
        time.sleep(SILENCE)  # as a node does that has lost its network
    liar = drill(context)
    return liar(message, context, call_next) if liar else call_next(message, context)


app = ClientApp(mods=[lie])


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)  # the nodes of the example share one computer
    model = network()
    arrays = message.content.array_records["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    partition, n_partitions = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    data = training_set(partition, n_partitions)
    liar = drill(context)
    if liar:
        data = liar.poisoned(message, *data, N_CLASSES)
    server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    loss = train(
        model, data, int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"]),
        seed=1000 * server_round + partition,
    )  # fmt: skip
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"train-loss": loss, "num-examples": len(data[1])}),
        }
    )
    return Message(content=content, reply_to=message)
