"""The client: trains on its own digits. A node that was started with an attack sends a forged update."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from cosdefense.catalog.registry import build_attack
from cosdefense.flower import MaliciousClient

from .task import N_CLASSES, build_network, load_training_set, train

SILENCE = 600.0  # seconds; longer than any deadline


def get_attacker(context: Context) -> MaliciousClient | None:
    """For a node that was started with `--node-config 'attack="inner-product" …'`, unless the run disables attacks."""
    name = context.node_config.get("attack")
    return MaliciousClient(build_attack({"name": name})) if name and context.run_config["attacks"] else None


def attack_if_configured(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod that applies the attack of the node. Leave it out of an app for production."""
    if context.node_config.get("silent"):
        time.sleep(SILENCE)  # like a node that has lost its network
    attacker = get_attacker(context)
    return attacker(message, context, call_next) if attacker else call_next(message, context)


app = ClientApp(mods=[attack_if_configured])


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)  # all nodes of the example share one computer
    model = build_network()
    arrays = message.content.array_records["arrays"]
    model.load_state_dict(arrays.to_torch_state_dict())
    partition, n_partitions = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    data = load_training_set(partition, n_partitions)
    attacker = get_attacker(context)
    if attacker:
        data = attacker.poison(message, *data, N_CLASSES)
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
