"""Rounds of a federation, written by hand."""

from __future__ import annotations

from collections.abc import Mapping

from cosdefense.runs.records import RoundRecord


def make_round(number: int, outcomes: Mapping[int, str | None], **others: object) -> RoundRecord:
    """Each node with the reason for which it was rejected; None: accepted."""
    reasons = tuple(outcomes.values())
    weights = tuple(0.0 if reason else 1.0 for reason in reasons)
    return RoundRecord(number, tuple(outcomes), weights, reasons=reasons, **others)  # type: ignore[arg-type]


def all_accepted(number: int, n_nodes: int = 10, **others: object) -> RoundRecord:
    return make_round(number, dict.fromkeys(range(1, n_nodes + 1)), **others)
