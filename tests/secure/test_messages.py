"""Any bytes as a message: they are read exactly as written, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_examples import CLIPPED, TERMS, draw_head, draw_updates, encode_update, start_round

from cosdefense.secure.exchange import Checks, Reports, Settled, TicketRequest
from cosdefense.secure.halves import Shape
from cosdefense.secure.messages import Malformed
from cosdefense.secure.report import Report
from cosdefense.secure.terms import RefusedTerms
from cosdefense.secure.ticket import Ticket

SHAPE = Shape.of(TERMS, with_cosine=True)
READERS: dict[str, Callable[[bytes], Any]] = {
    "ticket": Ticket.from_bytes,
    "request": TicketRequest.from_bytes,
    "report": lambda data: Report.from_bytes(data, TERMS, with_cosine=True),
    "reports": Reports.from_bytes,
    "checks": lambda data: Checks.from_bytes(data, SHAPE),
    "settled": lambda data: Settled.from_bytes(data, TERMS),
}


def written() -> dict[str, bytes]:
    """One valid message of each kind, from a real round."""
    rng = np.random.default_rng(0)
    head = draw_head(rng, TERMS)
    example = start_round(TERMS, head)
    rows = draw_updates(rng, TERMS, head, 1)
    reports = [example.write(encode_update(row, example.theta, TERMS), i) for i, row in enumerate(rows)]
    shown = Reports(example.ticket.number, tuple(report.for_helper() for report in reports))
    checks = example.helper.check_reports(shown)
    refused = example.helper.settle(checks)  # the helper's own answers are not the leader's: nobody is valid
    assert refused.words is None
    total = Settled(1, refused.outcomes, (1,) * 5, None, [-5] * TERMS.head, TERMS.ring.zeros(TERMS.words))
    return {
        "ticket": example.ticket.to_bytes(),
        "request": TicketRequest(TERMS, head.tobytes(), bytes(32)).to_bytes(),
        "report": reports[0].to_bytes(),
        "reports": shown.to_bytes(),
        "checks": checks.to_bytes(),
        "settled": total.to_bytes(TERMS),
    }


MESSAGES = written()


def rewrite(kind: str, data: bytes) -> bytes:
    found = READERS[kind](data)
    again: bytes = found.to_bytes(TERMS) if isinstance(found, Settled) else found.to_bytes()
    return again


@pytest.mark.parametrize("kind", READERS)
def test_messages_survive(kind: str) -> None:
    assert rewrite(kind, MESSAGES[kind]) == MESSAGES[kind]


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=60)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises((Malformed, RefusedTerms)):
        READERS[kind](data)


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=60)
@given(data=st.data())
def test_changed_messages_are_refused_or_read_as_written(kind: str, data: st.DataObject) -> None:
    """Truncated, extended or with a changed byte: no two messages mean the same, and nothing else is raised."""
    good = MESSAGES[kind]
    at = data.draw(st.integers(0, len(good) - 1))
    change = data.draw(st.sampled_from(["cut", "extend", "byte"]))
    if change == "cut":
        bad = good[:at]
    elif change == "extend":
        bad = good + b"\0" * (at % 9 + 1)
    else:
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    try:
        again = rewrite(kind, bad)
    except (Malformed, RefusedTerms):
        return
    assert change == "byte"
    assert again == bad


def test_a_report_of_other_terms_is_refused() -> None:
    with pytest.raises(Malformed, match="rest needs"):
        Report.from_bytes(MESSAGES["report"], CLIPPED, with_cosine=True)


def test_numbers_of_entries_are_limited() -> None:
    with pytest.raises(Malformed, match="at most 1000"):
        Reports.from_bytes(bytes(8) + (2**60).to_bytes(8, "little"))
