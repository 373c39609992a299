"""A table in words: for the page and as GitHub markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """Headings and rows of text."""

    name: str  # its anchor on a page
    title: str
    note: str  # what the columns mean
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_words: int = 1  # so many columns at the left are words, the others numbers
    parts: bool = False  # on the page, the first column stands above the rows that share it
    folded: bool = False  # on the page, shown when asked for

    def compact(self) -> Table:
        """Without columns in which nothing stands."""
        kept = [
            index
            for index in range(len(self.headings))
            if index < self.n_words - 1 or any(row[index] != NOTHING for row in self.rows)
        ]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return replace(self, headings=tuple(self.headings[index] for index in kept), rows=rows)

    def markdown(self) -> str:
        """Under a heading of the second level."""
        marks = ["---"] * self.n_words + ["---:"] * (len(self.headings) - self.n_words)
        lines = [_line(self.headings), _line(marks), *map(_line, self.rows)]
        return "\n".join([f"## {_inert(self.title)}", "", _paragraph(self.note), "", *lines, ""])


def tables_to_markdown(tables: Mapping[str, Table], title: str, words: str = "") -> str:
    """All tables, for documents, under a title and a paragraph where there is one."""
    opening = [f"# {title}", "", *([_paragraph(words), ""] if words else [])]
    return "\n".join([*opening, *(table.markdown() for table in tables.values())])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_inert, cells))} |"


def _paragraph(text: str) -> str:
    return fill(_inert(text), 100, break_long_words=False, break_on_hyphens=False)


def _inert(text: str) -> str:
    """Labels come from records: nothing in them may end a cell or begin a tag."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;").replace(">", "&gt;")
