"""Why a reply does not count."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A code per cause: in logs, in the round's metrics and in the records."""

    UNSENT = "unsent"  # the transport did not take the message: the node was never asked
    ERROR = "error"  # the client says that it failed
    LATE = "late"  # nothing came before the deadline
    BROKEN = "broken"  # it could not be pulled or read at all
    UNBOUND = "unbound"  # it answers no message of this round, or a message to somebody else
    DUPLICATE = "duplicate"  # its node has answered already
    RECORDS = "records"  # not exactly one record of arrays and one of metrics
    KEYS = "keys"  # not the arrays of the model
    FORMAT = "format"  # bytes that are no plain npy array
    SHAPE = "shape"
    DTYPE = "dtype"
    LENGTH = "length"
    NOT_FINITE = "not-finite"
    METRICS = "metrics"  # metrics that are not finite, or not those that most clients send
    EXAMPLES = "examples"  # a number of examples that is no finite positive number
    DEFENSE = "defense"  # well formed, and rejected by the defense


class BadReply(ValueError):
    """A reply that is rejected, and the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
