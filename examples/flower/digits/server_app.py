"""The server: Flower's FedAvg behind a defense."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from cosdefense import Defense, Filter
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense, MultiKrum
from cosdefense.flower import Defended, PullLimits
from cosdefense.monitor import Alarms, RoundObserver

from .task import build_network, load_test_set, measure

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    config = context.run_config
    min_nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=min_nodes, min_available_nodes=min_nodes)
    defended = Defended(
        strategy,
        build_defense(str(config["defense"]), float(config["contamination"])),
        checkpoint_dir=str(config["checkpoint-dir"]),
        quorum=int(config["quorum"]),
        deadline=float(config["deadline"]),
        observers=build_observers(int(config["metrics-port"])),
        pull_limits=PullLimits(silence=float(config["silence"])),
    )
    defended.start(
        grid,
        ArrayRecord(build_network().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
        resume=bool(config["resume"]),
    )


def build_defense(name: str, contamination: float) -> Defense | Filter:
    defenses: dict[str, Defense | Filter] = {
        "cosdefense": CosDefense(),
        "multi-krum": MultiKrum(contamination),
        "none": Defense((), Mean()),  # only malformed and late replies are rejected
    }
    return defenses[name]


def build_observers(metrics_port: int) -> list[RoundObserver]:
    if not metrics_port:
        return [Alarms()]
    from cosdefense.monitor import PrometheusMetrics  # needs the extra "metrics"

    return [Alarms(), PrometheusMetrics(port=metrics_port)]


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """On images that no node has."""
    model = build_network()
    model.load_state_dict(arrays.to_torch_state_dict())
    accuracy, loss = measure(model, load_test_set())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
