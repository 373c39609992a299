"""The client: takes a step."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from . import take_a_step

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    moved = take_a_step(arrays, seed=int(context.node_config["partition-id"]))
    record = ArrayRecord({name: Array(array) for name, array in moved.items()})
    content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)
