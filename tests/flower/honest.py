"""Honest nodes in this process: they run a ClientApp as a SuperNode does, without a process for each message."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import digits.client_app
import steps.client_app
from flwr.app import Context, Message, RecordDict


def run_client_app(example: Path, partition: int, n_partitions: int) -> Callable[[Message], RecordDict]:
    """What a node with this partition replies: to messages of the example, and of the steps app."""
    with (example / "pyproject.toml").open("rb") as file:
        run_config = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    node_config: dict[str, bool | float | int | str] = {"partition-id": partition, "num-partitions": n_partitions}

    def answer(message: Message) -> RecordDict:
        is_steps = "head.weight" in message.content.array_records["arrays"]
        app = steps.client_app.app if is_steps else digits.client_app.app
        context = Context(message.metadata.run_id, 0, node_config, RecordDict(), run_config)
        return app(message, context).content

    return answer
