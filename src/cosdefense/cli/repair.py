"""cosdefense repair: make a run with damaged records resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..catalog.options import ConfigError
from . import console

EPILOG = "Example: cosdefense repair runs/flower. Then resume the run as usual."


def repair(folder: Annotated[Path, typer.Argument(help="The folder of one run.")]) -> None:
    """Repair damaged records. The damaged files are kept, and rounds that cannot be read are marked as lost."""
    from ..runs.repair import repair
    from ..runs.run_folder import RunFolder

    run_folder = RunFolder(folder)
    if not run_folder.has_checkpoint:
        raise ConfigError(f"{folder} holds no {run_folder.checkpoint.name}: there is nothing to resume")
    repaired = repair(run_folder)
    if repaired is None:
        console.out.print(f"{folder}: the records fit the checkpoint, there is nothing to repair", soft_wrap=True)
        return
    lost = f"; lost: {', '.join(map(str, repaired.lost[:20]))}{' …' if len(repaired.lost) > 20 else ''}"
    console.out.print(
        f"{folder}: {repaired.kept} rounds kept, {len(repaired.lost)} lost{lost if repaired.lost else ''}",
        soft_wrap=True,
    )
    for path in repaired.copies:
        console.out.print(f"The damaged file is kept as {path}", soft_wrap=True)
