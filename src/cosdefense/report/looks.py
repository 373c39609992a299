"""A defense has the same color and pattern in every figure, whoever is drawn with it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import product
from zlib import crc32

from .figure import Entry
from .theme import DASHES, PALETTE

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GRAY = PALETTE
SOLID, DASHED, DOTTED = DASHES
Look = tuple[str, tuple[int, ...]]

# Labels in lower case. Those that figures of the documents show together differ in color.
KNOWN: dict[str, Look] = {
    "none": (GRAY, SOLID),
    "fedavg": (GRAY, SOLID),
    "krum": (VERMILION, DASHED),
    "krum (its paper)": (ORANGE, DOTTED),
    "multi-krum": (VERMILION, SOLID),
    "clipping-median": (GREEN, SOLID),
    "clipping-median (counters)": (SKY, DASHED),
    "median": (GREEN, DASHED),
    "trimmed mean": (GREEN, DOTTED),
    "cosdefense": (BLUE, SOLID),
    "factions": (PURPLE, SOLID),
    "two references": (ORANGE, DASHED),
    "opposed clusters": (SKY, DOTTED),
    "fltrust": (ORANGE, SOLID),
    "flame": (SKY, SOLID),
}
EVERY = tuple(product(PALETTE, DASHES))
OTHERS = [look for look in EVERY if look not in KNOWN.values()]


def list_looks(names: Iterable[str]) -> tuple[Entry, ...]:
    """Each name with its look.

    Names that are not known take one by their name, or the next that is free: first of those that no known name has,
    then of those whose known names are not in this figure.
    """
    names = list(dict.fromkeys(names))
    taken = {KNOWN[name.lower()] for name in names if name.lower() in KNOWN}
    entries = []
    for name in names:
        look = KNOWN.get(name.lower()) or _choose(name, taken)
        taken.add(look)
        entries.append(Entry(name, *look))
    return tuple(entries)


def _choose(name: str, taken: Container[Look]) -> Look:
    first = crc32(name.lower().encode()) % len(OTHERS)
    ordered = OTHERS[first:] + OTHERS[:first]
    return next((look for look in (*ordered, *EVERY) if look not in taken), ordered[0])
