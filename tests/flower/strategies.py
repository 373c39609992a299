"""All Flower strategies that average models, configured for eight nodes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app.message import arrayrecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

# With Bulyan and QFedAvg, Flower runs the garbage collector after every reply. In a pytest process this takes a hundred
# times longer than their rounds and changes no result, so it is disabled here.
arrayrecord.gc = SimpleNamespace(collect=lambda: 0)  # type: ignore[attr-defined, assignment]

NODES: dict[str, Any] = {"min_train_nodes": 8, "min_evaluate_nodes": 8, "min_available_nodes": 8}

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": lambda: flower.FedAvg(**NODES),
    "FedAvgM": lambda: flower.FedAvgM(**NODES, server_momentum=0.9, server_learning_rate=0.5),
    "FedAdam": lambda: flower.FedAdam(**NODES),
    "FedAdagrad": lambda: flower.FedAdagrad(**NODES),
    "FedYogi": lambda: flower.FedYogi(**NODES),
    "FedProx": lambda: flower.FedProx(**NODES, proximal_mu=0.1),
    "FedMedian": lambda: flower.FedMedian(**NODES),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(**NODES),
    "Krum": lambda: flower.Krum(**NODES, num_malicious_nodes=1),
    "MultiKrum": lambda: flower.MultiKrum(**NODES, num_malicious_nodes=1, num_nodes_to_select=4),
    "Bulyan": lambda: flower.Bulyan(**NODES, num_malicious_nodes=1),
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1, train_loss_key="loss", **NODES),
    "DP, fixed": lambda: flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(**NODES), 0.5, 0.1, 8),
    "DP, adaptive": lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(flower.FedAdam(**NODES), 0.5, 8),
}

# For tests that take long with each of them: `make quick` takes one that averages and one that adapts its step.
EVERY_STRATEGY = [
    name if name in ("FedAvg", "FedAdam") else pytest.param(name, marks=pytest.mark.slow) for name in STRATEGIES
]
