"""Text that may have been written by a client, made safe to show."""

from __future__ import annotations

MAX_LENGTH = 200


def printable(text: object, limit: int = MAX_LENGTH) -> str:
    """On one line, without control characters and without characters that change the direction of writing."""
    shown = str(text)
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)
