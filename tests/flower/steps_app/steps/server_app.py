"""The server: the mean of all valid replies that arrived in time."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from cosdefense import Defense
from cosdefense.aggregators import Mean
from cosdefense.flower import Defended

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    n = int(config["min-nodes"])
    defended = Defended(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n),
        Defense((), Mean()),
        checkpoint_dir=str(config["checkpoint-dir"]),
        quorum=int(config["quorum"]),
        deadline=float(config["deadline"]),
    )
    start = ArrayRecord({"weight": Array(np.zeros((4, 4), np.float32))})
    defended.start(grid, start, num_rounds=int(config["num-server-rounds"]))
