"""cosdefense verify: whether records are as they were written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from . import console
from .options import Json

EPILOG = "Example: cosdefense verify runs/flower. Exit code 1: records were changed, or the checkpoint does not fit."


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of one run.")],
    expect: Annotated[
        str | None, typer.Option(help="A digest that was printed earlier and kept elsewhere: it must be in the chain.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the hash chain of a run's records, and print the last digest."""
    from ..runs.verify import verify

    result = verify(folder, expect)
    if as_json:
        console.print_json(asdict(result))
    else:
        console.out.print(f"{folder}: {result.n_lines} lines, {result.n_rounds} rounds", soft_wrap=True)
        for text in result.notes:
            console.note(text)
        if not result.faults:
            console.out.print("The records are as they were written. The digest of the last line:")
            console.out.print(result.digest, soft_wrap=True)
    if result.faults:
        console.fail("; ".join(result.faults), 1)
