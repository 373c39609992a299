"""cosdefense export: recorded runs as a table for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog.options import ConfigError
from . import console
from .options import Json

EPILOG = "Example: cosdefense export runs/demo --to rounds.parquet"


def export(
    runs: Annotated[Path, typer.Argument(help="A folder of a run, one that holds some, or a pack (records.jsonl.gz).")],
    to: Annotated[Path, typer.Option(help="The file to write: .parquet or .csv.", dir_okay=False)],
    rows: Annotated[
        str, typer.Option(help="What a row is: rounds, clients (each client of each round) or runs (their summaries).")
    ] = "rounds",
    as_json: Json = False,
) -> None:
    """Write recorded runs as one table. Needs the extra "frames"."""
    if to.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"--to must end in .parquet or .csv, got {to}")
    from ..runs.frames import read_runs

    table = read_runs(runs, rows)  # type: ignore[arg-type]  # it refuses other words
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.suffix == ".parquet":
        table.write_parquet(to)
    else:
        table.write_csv(to)
    if as_json:
        console.print_json({"file": str(to), "rows": table.height, "columns": table.columns})
        return
    console.out.print(f"wrote {to}: {table.height} rows, {table.width} columns", soft_wrap=True)
    if rows == "clients" and not table.height:
        console.note("these records hold no clients: published packs keep only evaluations and summaries")
