"""The server: FedAvg behind Multi-Krum."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from cosdefense.filters import MultiKrum
from cosdefense.flower import Defended, PullLimits

from . import build_model, measure

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    n = int(config["min-nodes"])
    defended = Defended(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n),
        MultiKrum(float(config["contamination"])),
        checkpoint_dir=str(config["checkpoint-dir"]),
        quorum=int(config["quorum"]),
        deadline=float(config["deadline"]),
        pull_limits=PullLimits(grace=1.0),
    )
    start = ArrayRecord({name: Array(array) for name, array in build_model().items()})
    defended.start(grid, start, num_rounds=int(config["num-server-rounds"]), evaluate_fn=evaluate)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": measure({name: array.numpy() for name, array in arrays.items()})})
