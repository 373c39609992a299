"""Metrics, as Prometheus reads them."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from rounds import make_round

pytest.importorskip("prometheus_client", reason='needs the extra "metrics"')
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cosdefense.monitor import PrometheusMetrics
from cosdefense.monitor.alarms import Monitor
from cosdefense.monitor.prometheus import RunCollector
from cosdefense.runs.records import RoundRecord

ROUNDS = [
    make_round(
        number, {1: None, 2: "shape", 3: None, 2**64 - 1: "defense" if number % 2 else None},
        seconds={"train": 2.0, "evaluate": 0.5}, n_bytes={"train-sent": 40, "train-received": 30}, accuracy=0.5,
        names=("clinic A", None, None, None), loss=1.25, skipped="no quorum" if number == 3 else None,
    )
    for number in range(8)
]  # fmt: skip


def read(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_those_of_the_records() -> None:
    metrics = PrometheusMetrics(port=0)
    try:
        metrics.started({}, ROUNDS[:5])  # resumed
        for record in ROUNDS[5:]:
            metrics.recorded(record)
        found = read(metrics.port)
    finally:
        metrics.ended()
    assert found == {
        "cosdefense_rounds_total": 8, "cosdefense_skipped_rounds_total": 1,
        "cosdefense_phase_seconds_total phase=train": 16.0, "cosdefense_phase_seconds_total phase=evaluate": 4.0,
        "cosdefense_bytes_total direction=sent phase=train": 320,
        "cosdefense_bytes_total direction=received phase=train": 240,
        "cosdefense_accuracy": 0.5, "cosdefense_loss": 1.25, "cosdefense_last_round_nodes": 4,
        "cosdefense_replies_accepted_total": 20,
        "cosdefense_replies_rejected_total reason=shape": 8, "cosdefense_replies_rejected_total reason=defense": 4,
        "cosdefense_node_accepted_total name=clinic A node=1": 8,
        "cosdefense_node_rejected_total name=clinic A node=1": 0,
        "cosdefense_node_accepted_total name= node=2": 0, "cosdefense_node_rejected_total name= node=2": 8,
        "cosdefense_node_accepted_total name= node=3": 8, "cosdefense_node_rejected_total name= node=3": 0,
        f"cosdefense_node_accepted_total name= node={2**64 - 1}": 4,
        f"cosdefense_node_rejected_total name= node={2**64 - 1}": 4,
        "cosdefense_active_alarms rule=node-rejected": 0, "cosdefense_alarms_total rule=node-rejected": 0,
        "cosdefense_active_alarms rule=node-lost": 0, "cosdefense_alarms_total rule=node-lost": 0,
        "cosdefense_active_alarms rule=rounds-skipped": 0, "cosdefense_alarms_total rule=rounds-skipped": 0,
        "cosdefense_active_alarms rule=accuracy-fell": 0, "cosdefense_alarms_total rule=accuracy-fell": 0,
    }  # fmt: skip


def collect(rounds: list[RoundRecord], max_nodes: int = 500) -> CollectorRegistry:
    monitor, registry = Monitor(), CollectorRegistry()
    for record in rounds:
        monitor.add(record)
    registry.register(RunCollector(lambda: monitor, max_nodes))
    return registry


def test_alarms_are_metrics() -> None:
    registry = collect([make_round(number, {1: None}, skipped="why") for number in range(3)])
    labels = {"rule": "rounds-skipped"}
    assert registry.get_sample_value("cosdefense_active_alarms", labels) == 1
    assert registry.get_sample_value("cosdefense_alarms_total", labels) == 1


def test_the_number_of_labels_is_bounded() -> None:
    """Without node authentication, somebody may come back under a new name every round."""
    registry = collect([make_round(number, {1: None, 1000 + number: "shape"}) for number in range(50)], max_nodes=10)
    values = {
        sample.labels["node"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "cosdefense_node_rejected_total"
    }
    assert len(values) == 11
    assert values["other"] == 41  # of 51 nodes, ten have their own label, and one of these was never rejected
    assert registry.get_sample_value("cosdefense_node_accepted_total", {"node": "1", "name": ""}) == 50


@pytest.mark.slow
def test_the_address_is_free_again_after_the_run() -> None:
    first = PrometheusMetrics(port=0)
    with pytest.raises(OSError, match="in use"):
        PrometheusMetrics(port=first.port)
    first.ended()
    PrometheusMetrics(port=first.port).ended()
