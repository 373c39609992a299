"""The client of examples/flower, unchanged, behind `secure_mod`: its server gets reports instead of models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from digits.client_app import attack_if_configured, train_on_own_data
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from cosdefense.flower import secure_mod


def keep_copy(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Keep the model at the node, so that the example can search the servers for it. Leave it out of your own app."""
    reply = call_next(message, context)
    folder = Path(str(context.node_config["copies"]))
    for name, source in (("start", message), ("trained", reply)):
        arrays = {key: array.numpy() for key, array in source.content.array_records["arrays"].items()}
        number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        np.savez(folder / f"{context.node_id}-{number}-{name}.npz", **arrays)  # type: ignore[arg-type]
    return reply


app = ClientApp(mods=[secure_mod, keep_copy, attack_if_configured])
app.train()(train_on_own_data)
