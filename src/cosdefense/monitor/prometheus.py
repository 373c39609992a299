"""The metrics of a run for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..catalog.extras import extra_libraries
from ..runs.observer import RoundObserver
from ..runs.records import RoundRecord
from .alarms import Monitor

with extra_libraries("metrics", "serving metrics", "prometheus_client"):
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

from ..runs.safe_text import printable
from .history import OTHER, RunHistory
from .rules import DEFAULT_RULES, Rule

PREFIX = "cosdefense"
MAX_NODES = 500  # with their own labels; each costs two time series


class RunCollector(Collector):
    """Gives the present state of a run to Prometheus whenever it asks."""

    def __init__(self, get_monitor: Callable[[], Monitor | None], max_nodes: int = MAX_NODES) -> None:
        self._get_monitor, self._max_nodes = get_monitor, max_nodes
        self.lock = threading.Lock()  # for who adds rounds: Prometheus asks from another thread

    def collect(self) -> Iterable[Metric]:
        with self.lock:
            monitor = self._get_monitor()
            return list(self._collect(monitor)) if monitor else []

    def _collect(self, monitor: Monitor) -> Iterator[Metric]:
        yield from _collect_run(monitor.history)
        yield from _collect_replies(monitor.history)
        yield from _collect_nodes(monitor.history, self._max_nodes)
        yield from _collect_alarms(monitor)


class PrometheusMetrics(RoundObserver):
    """Serves the metrics of a federation: `Defended(…, observers=[PrometheusMetrics(port=9464)])`.

    There is no password. Let other computers reach `host` only inside a network that you trust.
    """

    def __init__(
        self,
        port: int = 9464,
        host: str = "127.0.0.1",
        rules: Sequence[Rule] = DEFAULT_RULES,
        max_nodes: int = MAX_NODES,
    ) -> None:
        self._rules = tuple(rules)
        self._monitor = Monitor(self._rules)
        self._collector, self.registry = RunCollector(lambda: self._monitor, max_nodes), CollectorRegistry()
        self.registry.register(self._collector)
        self._server, self._thread = start_http_server(port, host, self.registry)
        self.port = int(self._server.server_port)  # the one that was free, if 0 was asked for

    def started(self, header: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> None:
        with self._collector.lock:
            self._monitor = Monitor(self._rules)
            for record in rounds:
                self._monitor.add(record)

    def recorded(self, record: RoundRecord) -> None:
        with self._collector.lock:
            self._monitor.add(record)

    def ended(self) -> None:
        """Stop serving: Prometheus sees that the run is over."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _collect_run(history: RunHistory) -> Iterator[Metric]:
    yield CounterMetricFamily(f"{PREFIX}_rounds", "Rounds recorded.", value=history.n_rounds)
    yield CounterMetricFamily(f"{PREFIX}_skipped_rounds", "Rounds that left the model as it was.", history.n_skipped)
    yield _family(CounterMetricFamily, "phase_seconds", "Time spent, by phase.", "phase", history.seconds)
    n_bytes = CounterMetricFamily(f"{PREFIX}_bytes", "Arrays sent and received.", labels=["phase", "direction"])
    for name, number in history.n_bytes.items():
        phase, _, direction = name.partition("-")
        n_bytes.add_metric([printable(phase, 40), printable(direction, 40)], number)
    yield n_bytes
    for name, text, value in (
        ("accuracy", "Accuracy of the last evaluation.", history.accuracy),
        ("loss", "Loss of the last evaluation.", history.loss),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _collect_replies(history: RunHistory) -> Iterator[Metric]:
    yield CounterMetricFamily(f"{PREFIX}_replies_accepted", "Replies accepted.", history.n_accepted)
    text = "Replies rejected, or never received, by reason."
    yield _family(CounterMetricFamily, "replies_rejected", text, "reason", history.rejected)
    yield GaugeMetricFamily(f"{PREFIX}_last_round_nodes", "Nodes asked in the last round.", _count_last(history))


def _collect_nodes(history: RunHistory, limit: int) -> Iterator[Metric]:
    """The nodes seen first have labels of their own; the others are counted together, so that labels stay few."""
    families = [
        CounterMetricFamily(f"{PREFIX}_node_{name}", f"Replies of a node that were {name}.", labels=["node", "name"])
        for name in ("accepted", "rejected")
    ]
    counts: dict[tuple[str, str], list[int]] = {}
    by_age = sorted(history.nodes.items(), key=lambda item: (item[1].first_round, item[0]))
    for index, (client, node) in enumerate(by_age):
        label = (str(client), printable(node.name, 60)) if index < limit else (OTHER, "")
        before = counts.get(label, [0, 0])
        counts[label] = [before[0] + node.n_accepted, before[1] + sum(node.reasons.values())]
    for label, values in counts.items():
        for family, value in zip(families, values, strict=True):
            family.add_metric(label, value)
    yield from families


def _collect_alarms(monitor: Monitor) -> Iterator[Metric]:
    active = {rule.name: 0 for rule in monitor.rules}
    for alarm in monitor.active.values():
        active[alarm.rule] += 1
    raised = {name: monitor.n_raised[name] for name in active}
    yield _family(GaugeMetricFamily, "active_alarms", "Alarms that are not over, by rule.", "rule", active)
    yield _family(CounterMetricFamily, "alarms", "Alarms raised, by rule.", "rule", raised)


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    values: Mapping[str, int | float],
) -> Metric:
    family = kind(f"{PREFIX}_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([printable(key, 40)], value)
    return family


def _count_last(history: RunHistory) -> int:
    return len(history.last.clients) if history.last else 0
