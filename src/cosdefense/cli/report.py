"""cosdefense report: figures and a page from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog.options import ConfigError
from . import results
from .options import Json, Publish

EPILOG = "Example: cosdefense report runs/demo"


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, folders that hold some, or packs (records.jsonl.gz).")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; default: the first folder named.")] = None,
    publish: Publish = None,
    as_json: Json = False,
) -> None:
    """Write PNG figures and one HTML page that works offline; with several attacks also tables as markdown."""
    from ..report import write_report
    from ..runs.packed_records import PACK, compact, find_runs, write_pack

    read = [run for path in runs for _, run in find_runs(path)]
    read.sort(key=lambda run: (run.header.get("attack") != "none", run.label != "none"))  # what others are measured by
    if publish:
        read = [compact(run) for run in read if run.summary]
        if not read:
            raise ConfigError(f"{', '.join(map(str, runs))}: no run is finished, so that nothing can be published")
        write_pack(publish / PACK, read)
    folder = publish or out or (runs[0].parent if runs[0].is_file() else runs[0])
    title = str(read[0].header["experiment"].get("name", runs[0].name))
    results.show_report(write_report(read, folder, title), as_json)
