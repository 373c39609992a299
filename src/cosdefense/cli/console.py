"""Where commands print: results to standard output; progress, notes and errors to standard error."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from rich.console import Console

# No markup: labels, paths and messages are other people's text, and may hold brackets.
out = Console(highlight=False, markup=False)  # results
err = Console(stderr=True, highlight=False, markup=False)  # progress, notes and errors


def fail(message: str, code: int) -> NoReturn:
    """End a command that could not do what was asked."""
    err.print(f"error: {message}", style="red", soft_wrap=True)
    sys.exit(code)


def note(message: str) -> None:
    """Print something to know that stops nothing."""
    err.print(f"note: {message}", style="yellow", soft_wrap=True)


def print_json(content: object) -> None:
    print_text(json.dumps(content) + "\n")


def print_text(text: str) -> None:
    print(text, end="")  # noqa: T201 (rich would wrap it)
