"""What the server does: Flower's FedAvg, defended."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from cosdefense import Defense, Filter
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense, MultiKrum
from cosdefense.flower import Defended

from .task import network, test, test_set

DEFENSES: dict[str, Defense | Filter] = {
    "cosdefense": CosDefense(),
    "multi-krum": MultiKrum(),
    "none": Defense((), Mean()),  # the guard alone: whatever is well formed counts
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    config = context.run_config
    min_nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=min_nodes, min_available_nodes=min_nodes)
    defended = Defended(
        strategy,
        DEFENSES[str(config["defense"])],
        checkpoint_dir=str(config["checkpoint-dir"]),
        quorum=int(config["quorum"]),
        deadline=float(config["deadline"]),
    )
    defended.start(
        grid,
        ArrayRecord(network().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
        resume=bool(config["resume"]),
    )


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On images that no node has."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = test(model, test_set())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
