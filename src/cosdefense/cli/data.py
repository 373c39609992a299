"""cosdefense data: find or fetch the datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from . import console
from .options import DataDir, Json
from .progress import DownloadProgress, progress_bars

data_app = typer.Typer(help="Find or fetch the datasets.", no_args_is_help=True)


@data_app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="mnist, fashion-mnist, cifar-10")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download what is absent, verified by digest."""
    from ..data import datasets

    with progress_bars() as bars:
        progress = DownloadProgress(bars)
        paths = {name: str(datasets.fetch(name, data_dir, progress=progress)) for name in names}
    if as_json:
        console.print_json(paths)
        return
    for name, path in paths.items():
        console.out.print(f"{name}: {path}", soft_wrap=True)


@data_app.command()
def where(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say from where each dataset would be read."""
    from ..data import DATASETS, datasets

    paths = {name: datasets.where(name, data_dir) for name in names or DATASETS}
    if as_json:
        console.print_json({name: path and str(path) for name, path in paths.items()})
        return
    for name, path in paths.items():
        console.out.print(f"{name}: {path or 'not found; cosdefense data fetch ' + name}", soft_wrap=True)
