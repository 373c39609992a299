"""Recorded runs as tables: one row per round, per client of a round, or per run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..catalog.extras import extra_libraries
from ..catalog.options import ConfigError
from .metrics import summary_of
from .packed_records import find_runs
from .records import RoundRecord, RunRecord
from .round_values import describe_round, flatten

if TYPE_CHECKING:
    import polars

Rows = Literal["rounds", "clients", "runs"]
Row = dict[str, Any]


def read_runs(path: Path | str, rows: Rows = "rounds") -> polars.DataFrame:
    """The runs of a folder, of folders below it, or of a pack (`records.jsonl.gz`), as a polars frame.

    There is one row per round, per client of a round, or per run. Every row names its run by `run`, `experiment`,
    `attack`, `defense` and `seed`. Rounds count from 0, as in the records. Needs the extra "frames".
    """
    with extra_libraries("frames", "a table of runs", "polars"):
        import polars
    if rows not in get_args(Rows):
        raise ConfigError(f"rows must be one of {', '.join(get_args(Rows))}, got {rows!r}")
    make_rows = {"rounds": _rows_of_rounds, "clients": _rows_of_clients, "runs": _rows_of_run}[rows]
    table = [_identity(name, run) | row for name, run in find_runs(Path(path)) for row in make_rows(run)]
    return polars.DataFrame(_to_columns(table), schema_overrides=_schema(rows), strict=False)


def _identity(name: str, run: RunRecord) -> Row:
    header = run.header
    return {
        "run": name,
        "experiment": run.experiment,
        "attack": header.get("attack"),
        "defense": header.get("defense"),
        "seed": header.get("seed"),
    }


def _rows_of_rounds(run: RunRecord) -> Iterator[Row]:
    yield from map(describe_round, run.rounds)


def _rows_of_clients(run: RunRecord) -> Iterator[Row]:
    """The clients of each round; where every client's own data were tested, the others too."""
    names: Sequence[str] = run.header.get("clients") or ()  # those that the data of a simulation name
    for record in run.rounds:
        for row, client in enumerate(record.clients):
            yield {
                "round": record.round,
                "client": client,
                "name": _get(record.names, row) or _get(names, client),
                "weight": record.weights[row],
                "accepted": record.weights[row] != 0,
                "malicious": None if record.malicious is None else record.malicious[row],
                "reason": _get(record.reasons, row),
                "notes": ", ".join(note for note, noticed in record.notes.items() if client in noticed) or None,
                **{f"score_{name}": scores[row] for name, scores in record.scores.items()},
                **_list_metrics(record, client),
            }
        n_measured = max(map(len, record.client_metrics.values()), default=0)
        for client in sorted(set(range(n_measured)) - set(record.clients)):
            yield {
                "round": record.round,
                "client": client,
                "name": _get(names, client),
                **_list_metrics(record, client),
            }


def _list_metrics(record: RoundRecord, client: int) -> Row:
    """Of a client's own test data. These are kept for the clients 0, 1, 2, … of a simulation."""
    measured = record.client_metrics.items()
    return {f"metric_{name}": values[client] for name, values in measured if client < len(values)}


def _rows_of_run(run: RunRecord) -> Iterator[Row]:
    yield {"finished": run.summary is not None, "n_rounds": run.n_rounds, **flatten(summary_of(run))}


def _to_columns(table: Sequence[Row]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in table for name in row)
    return {name: [row.get(name) for row in table] for name in names}


def _get(values: Sequence[str | None], row: int) -> str | None:
    return values[row] if row < len(values) else None


def _schema(rows: Rows) -> dict[str, Any]:
    """The types of columns that may be empty, and of the ids of nodes, which take all 64 bits."""
    import polars

    if rows == "clients":
        texts, others = ("name", "reason", "notes"), {"client": polars.UInt64, "malicious": polars.Boolean}
        return dict.fromkeys(texts, polars.String) | others
    if rows == "runs":
        return {}
    numbers = [field.name for field in fields(RoundRecord) if field.type == "float | None"]
    return dict.fromkeys(numbers, polars.Float64) | {"skipped": polars.String}
