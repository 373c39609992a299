"""What leader and clients of secure aggregation send each other inside Flower's messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from ..core import Layout
from ..secure.messages import Malformed
from ..secure.streams import digest
from ..secure.terms import Terms
from ..secure.ticket import Ticket
from .arrays import NDArray

KEY = "cosdefense-secure"  # the record of configuration in a message that asks for training
REPORT = "report"  # the only array in a reply


@dataclass(frozen=True)
class SecureRecord:
    """The helper's ticket, the terms that it names, and the layer that CosDefense looks at ("" if there is none)."""

    ticket: Ticket
    terms: Terms
    layer: str

    def write(self, message: Message) -> None:
        message.content[KEY] = ConfigRecord(
            {"ticket": self.ticket.to_bytes(), "terms": self.terms.to_json(), "layer": self.layer}
        )

    @classmethod
    def take(cls, message: Message) -> SecureRecord:
        """Read the record and remove it: the app gets the message that the strategy wrote."""
        if KEY not in message.content.config_records:
            raise Malformed("the message holds no ticket of a helper")
        record = message.content.config_records[KEY]
        del message.content[KEY]
        ticket, terms, layer = (record.get(name) for name in ("ticket", "terms", "layer"))
        if not isinstance(ticket, bytes) or not isinstance(terms, str) or not isinstance(layer, str):
            raise Malformed("the message holds a ticket of an unknown form")
        return cls(Ticket.from_bytes(ticket), Terms.from_json(terms), layer)


def digest_others(
    message: Message, arrays: Mapping[str, NDArray], layout: Layout, run_config: Mapping[str, object]
) -> bytes:
    """Of all that a node is sent beside the numbers of the model, so that every node is asked for the same.

    A server could otherwise tell all nodes but one to train with a learning rate of zero, and the sum would be the
    update of that one. It can do so in a message or in the configuration of the run, which a node gets from the
    SuperLink. Counters and other arrays that a vector leaves out could mark a model in the same way.
    """
    kinds = [(name, str(array.dtype), array.shape) for name, array in arrays.items()]
    records = [
        (name, type(record).__name__, [] if isinstance(record, ArrayRecord) else sorted(record.items()))
        for name, record in sorted(message.content.items())
        if name != KEY
    ]
    metadata = message.metadata
    text = repr((metadata.message_type, metadata.group_id, kinds, records, sorted(run_config.items())))
    left_out = [array for name, array in arrays.items() if name not in layout.slices]
    return digest("message", text.encode(), *(np.ascontiguousarray(array).tobytes() for array in left_out))
