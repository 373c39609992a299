"""The client: takes one random step, or never replies."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

SILENCE = 600.0  # seconds; longer than any deadline

app = ClientApp()


@app.train()
def take_a_step(message: Message, context: Context) -> Message:
    if context.node_config.get("silent"):
        time.sleep(SILENCE)  # like a node that has lost its network
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    arrays = message.content.array_records["arrays"]
    moved = {name: Array(array.numpy() + rng.random(array.shape, np.float32)) for name, array in arrays.items()}
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)
