"""MLflow: a server, a database or a folder that `mlflow ui` shows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

from ..catalog.extras import extra_libraries

with extra_libraries("mlflow", "MLflow", "mlflow"):
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

from .tracker import Setting, Tracker

TAG = "cosdefense.run"
BATCH = 100  # parameters per request, which is MLflow's limit
MAX_LENGTH = 500  # of a parameter, on servers of any age


class MLflow(Tracker):
    """Writes to the MLflow `experiment` at `uri`; None: where MLFLOW_TRACKING_URI says.

    With a `name`, a resumed run continues the MLflow run of that name. Without one, every start makes a new run.
    """

    def __init__(self, uri: str | None = None, experiment: str = "cosdefense", name: str | None = None) -> None:
        self.client = MlflowClient(uri)
        self.experiment, self.name = experiment, name

    def begin(self, settings: Mapping[str, Setting]) -> int:
        known = self.client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else self.client.create_experiment(self.experiment)
        n_logged = self._find_run(experiment)
        if n_logged is not None:
            return n_logged
        tags = {TAG: _digest(self.name)} if self.name else {}
        self.run_id = self.client.create_run(experiment, run_name=self.name, tags=tags).info.run_id
        parameters = [Param(name, str(value)[:MAX_LENGTH]) for name, value in settings.items()]
        for first in range(0, len(parameters), BATCH):
            self.client.log_batch(self.run_id, params=parameters[first : first + BATCH])
        return 0

    def _find_run(self, experiment: str) -> int | None:
        """Continue the run of this name. Returns how many of its rounds are there; None: there is no such run."""
        if self.name is None:
            return None
        found = self.client.search_runs([experiment], f"tags.`{TAG}` = '{_digest(self.name)}'", max_results=1)
        if not found:
            return None
        self.run_id = found[0].info.run_id
        self.client.set_terminated(self.run_id, "RUNNING")
        histories = [self.client.get_metric_history(self.run_id, name) for name in found[0].data.metrics]
        return max((metric.step + 1 for history in histories for metric in history), default=0)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, number) for name, value in values.items()]
        self.client.log_batch(self.run_id, metrics, tags=[RunTag("rounds", str(number + 1))])

    def end(self) -> None:
        self.client.set_terminated(self.run_id)


def _digest(name: str) -> str:
    """A search takes no name with quotes in it."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
