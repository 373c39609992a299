"""Text that others wrote, made safe for a log, a terminal or a page."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

MAX_LENGTH = 200


def printable(text: object, limit: int = MAX_LENGTH) -> str:
    """On one line, without control characters and without characters that change the direction of writing."""
    shown = str(text)
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    if shown.isprintable():  # nearly always
        return shown
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)


def log_failure(log: logging.Logger, error: BaseException, message: str, *arguments: object) -> None:
    """As `log.exception`, but the text of the error, which a client may have written, stays on one line."""
    log.error(f"{message}\n%s", *arguments, "\n".join(_format(error)))


def _format(error: BaseException) -> Iterator[str]:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _format(cause)
        yield "The error above led to this one:"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        yield f"    {printable(frame.line or '')}"
    yield f"{type(error).__name__}: {printable(error)}"
