"""Why a reply does not count."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """One code per cause. The codes appear in logs, in the metrics of a round and in the records."""

    UNSENT = "unsent"  # the transport did not accept the message, so the node was never asked
    ERROR = "error"  # the client reported an error
    LATE = "late"  # no reply before the deadline
    UNREADABLE = "unreadable"  # the reply could not be pulled or decoded
    UNSOLICITED = "unsolicited"  # it answers no message of this round, or a message to another node
    DUPLICATE = "duplicate"  # another reply of the same node counts
    RECORDS = "records"  # not exactly one record of arrays and one of metrics
    KEYS = "keys"  # not the array names of the model
    FORMAT = "format"  # not a plain npy array
    SHAPE = "shape"
    DTYPE = "dtype"
    LENGTH = "length"
    NOT_FINITE = "not-finite"
    METRICS = "metrics"  # metrics that are not finite, or not those that most clients send
    EXAMPLES = "examples"  # the number of examples is not a finite positive number
    NORM = "norm"  # the update is far longer than those of the other nodes and of earlier rounds
    RESULT = "result"  # the longest update of a round whose result was usable only without it
    UNKNOWN = "unknown"  # under secure aggregation: its key is not in the helper's roster
    UNSIGNED = "unsigned"  # its signature does not cover the report and the ticket
    UNSEALED = "unsealed"  # the helper cannot decrypt its half of the report
    UNPROVEN = "unproven"  # its claim does not follow from its report
    DEFENSE = "defense"  # well formed, but rejected by the defense


class Rejection(NamedTuple):
    """A reply that does not count, or that never arrived."""

    node: int
    reason: Reason
    detail: str


class BadReply(ValueError):
    """Raised while a reply is checked."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def quote_error(error: object) -> str:
    """An error on one short line without control characters: a client may have written its text."""
    text = repr(str(error)[:120])
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text
