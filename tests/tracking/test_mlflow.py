"""What MLflow reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosdefense.runs.records import RoundRecord

ROUNDS = [RoundRecord(number, (1, 2), (1.0, 0.0), accuracy=number / 4) for number in range(4)]
HEADER = {"experiment": {"name": "x", **{f"option{number}": "y" * 1000 for number in range(120)}}, "defense": "median"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its imports warn, and so does its store of files
def test_mlflow_reads_back_what_it_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason='needs the extra "mlflow"')
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from cosdefense.tracking import MLflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for n_before, stop in ((0, 2), (1, 4)):  # killed after the second round, resumed from a checkpoint of the first
        tracker = MLflow(uri, "hospitals", name="it's one")
        tracker.started(HEADER, ROUNDS[:n_before])
        for record in ROUNDS[n_before:stop]:
            tracker.recorded(record)
        tracker.ended()
    client = tracker.client
    experiment = client.get_experiment_by_name("hospitals")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("it's one", "FINISHED")
    assert run.data.params["defense"] == "median"
    assert run.data.params["option119"] == "y" * 500
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(n, n / 4) for n in range(4)]
    assert run.data.metrics["n_rejected"] == 1.0
