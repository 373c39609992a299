"""A simulated federation client by client: how often each was rejected, and how well the final model serves it."""

from __future__ import annotations

from collections.abc import Sequence

from ..runs.client_outcomes import estimate_accuracies, find_client_metrics, list_malicious, list_outcomes
from ..runs.records import RunRecord
from .table import NOTHING, Table

MAX_CLIENTS = 10  # of a run, those rejected most often
MAX_OPEN = 24  # rows; more are shown when asked for
FORMS = {"accuracy": ".1%", "auroc": ".3f", "f1": ".3f"}  # of other metrics: four digits

Cells = dict[str, str]  # by heading


def make_client_table(runs: Sequence[RunRecord]) -> Table | None:
    """None where no filter judged anybody and no client was evaluated."""
    rows = [(_name_run(run, runs), row) for run in runs for row in _rows(run)]
    if not rows:
        return None
    headings = list(dict.fromkeys(heading for _, row in rows for heading in row))
    several = len({name for name, _ in rows}) > 1
    cells = [
        (*((name,) if several else ()), *(row.get(heading, NOTHING) for heading in headings)) for name, row in rows
    ]
    note = "Rejected: the share of the rounds in which a filter judged the client and rejected it. Those rejected most "
    note += (
        f"often stand first, at most {MAX_CLIENTS} of a run; of malicious clients only rounds with the attack count. "
    )
    if any("Accuracy" in row or "Loss" in row for _, row in rows):
        note += "Other columns: the final model on the client's own test samples. "
    if any("Expected accuracy" in row for _, row in rows):
        note += (
            "Expected accuracy: from the recall of each class and the client's samples of it, since the data have no "
        )
        note += "test samples of each client. "
    note += "An honest client that is always rejected does not take part: look how well the model serves it."
    return Table(
        "clients",
        "Clients",
        note,
        (*(("Run",) if several else ()), *headings),
        tuple(cells),
        n_words=3 if several else 2,
        parts=several,
        folded=len(rows) > MAX_OPEN,
    ).compact()


def _rows(run: RunRecord) -> list[Cells]:
    measured, estimated = find_client_metrics(run.rounds), estimate_accuracies(run)
    names, split = run.header.get("clients") or (), run.header.get("split") or ()
    outcomes = {outcome.client: outcome for outcome in list_outcomes(run.rounds)}
    n_measured = max(map(len, measured.values()), default=0)
    malicious = list_malicious(run.rounds)
    rows = []
    for client in [*outcomes, *(client for client in range(n_measured) if client not in outcomes)][:MAX_CLIENTS]:
        row = {
            "Client": f"{names[client]} ({client})" if client < len(names) else str(client),
            "Was": "malicious" if client in malicious else "honest",
            "Samples": str(sum(split[client])) if client < len(split) else NOTHING,
            "Rejected": NOTHING,
            "Rounds judged": NOTHING,
        }
        if client in outcomes:
            outcome = outcomes[client]
            row |= {"Rejected": f"{outcome.share:.1%}", "Rounds judged": str(outcome.judged)}
        for name, values in measured.items():
            row[_heading(name)] = _format(name, values[client]) if client < len(values) else NOTHING
        if not measured and client < len(estimated):
            row["Expected accuracy"] = _format("accuracy", estimated[client])
        rows.append(row)
    return rows


def _name_run(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """The defense, and whatever else varies."""
    parts = [run.label]
    if len({other.header.get("attack") for other in runs}) > 1:
        parts.append(str(run.header.get("attack")))
    if len({other.header.get("seed") for other in runs}) > 1:
        parts.append(f"seed {run.header.get('seed')}")
    if len({other.experiment for other in runs}) > 1:
        parts.append(run.experiment)
    return " · ".join(parts)


def _heading(metric: str) -> str:
    return {"auroc": "AUROC", "f1": "F1", "mse": "MSE", "mae": "MAE", "r2": "R²"}.get(metric, metric.capitalize())


def _format(metric: str, value: float | None) -> str:
    return NOTHING if value is None else f"{value:{FORMS.get(metric, '.4g')}}"
