"""A real federation node by node: how often each was asked, how often it counted, and why not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..runs.records import RunRecord
from .table import NOTHING, Table

MAX_OPEN = 24  # rows; more are shown when asked for


def make_node_table(runs: Sequence[RunRecord]) -> Table | None:
    """None where nobody knows why a reply was rejected, as in a simulation."""
    known = [run for run in runs if any(record.reasons for record in run.rounds)]
    rows = [(run.label, *row) for run in known for row in _rows(run)]
    if not rows:
        return None
    several = len(known) > 1
    return Table(
        "nodes",
        "Nodes",
        "Counted: rounds in which the node's reply was used. Those that counted least stand first. "
        "A node that hardly ever counts deserves a look.",
        (*("Run",) * several, "Node", "Not counted because", "Rounds asked", "Counted"),
        tuple(row if several else row[1:] for row in rows),
        n_words=3 if several else 2,
        parts=several,
        folded=len(rows) > MAX_OPEN,
    )


def _rows(run: RunRecord) -> list[tuple[str, str, str, str]]:
    reasons: dict[int, Counter[str | None]] = defaultdict(Counter)
    names: dict[int, str] = {}
    for record in run.rounds:
        names |= {node: name for node, name in zip(record.clients, record.names, strict=False) if name}
        for node, reason in zip(record.clients, record.reasons, strict=False):
            reasons[node][reason] += 1
    return [
        (
            f"{names[node]} ({node})" if node in names else str(node),
            _list_reasons(counts),
            str(counts.total()),
            str(counts[None]),
        )
        for node, counts in sorted(reasons.items(), key=lambda item: (item[1][None] / item[1].total(), item[0]))
    ]


def _list_reasons(counts: Counter[str | None]) -> str:
    texts = [f"{reason} ({times}×)" for reason, times in counts.most_common() if reason is not None]
    return ", ".join(texts) or NOTHING
