"""cosdefense list: what there is, by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from . import console
from .options import Json

EPILOG = "Example: cosdefense list attacks"


class Kind(StrEnum):
    """The kinds of things that can be listed."""

    defenses = "defenses"
    filters = "filters"
    aggregators = "aggregators"
    hooks = "hooks"
    attacks = "attacks"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"


def list_parts(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; default: everything.")] = None,
    as_json: Json = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print docs/toml.md: all keys of an experiment's file.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/catalog.md: all parts, in full.")] = False,
) -> None:
    """What there is, what it needs, with options and defaults."""
    from ..catalog import page as catalog_page
    from . import listing

    if toml:
        from ..runs.toml_reference import build_reference

        console.print_text(build_reference())
        return
    if markdown:
        console.print_text(catalog_page.build_page())
        return
    kinds = [kind] if kind else list(Kind)
    if as_json:
        console.print_json({str(kind): listing.entries(kind) for kind in kinds})
        return
    for kind in kinds:
        for table in listing.tables(kind):
            console.out.print(table)
