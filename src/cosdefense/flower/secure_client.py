"""The client's end of secure aggregation: a mod that sends a report in place of the trained model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from ..runs.safe_text import log_failure
from ..secure.encoding import encode_public_head
from ..secure.helper_config import read_private_key
from ..secure.model import ModelParts, to_floats
from ..secure.report import write_report
from ..secure.streams import KEY
from ..secure.terms import Terms
from ..secure.ticket import RefusedTicket
from .arrays import to_numpy
from .secure_record import REPORT, SecureRecord, digest_others
from .sent_model import SentModel

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class NodeSettings:
    """What a node's operator decides: `flower-supernode --node-config 'secure-key="node.pem" secure-helper="…"'`.

    Args:
        key: Signs reports. The helper's roster has its public key.
        helper: The public key of the helper's identity, from the helper's operator.
        smallest: `secure-smallest`, the least number of clients in a sum that this node takes part in.
        norms: `secure-norms`, whether the norm of its update may be opened.
        head: `secure-head`, the fewest coordinates of the tensor whose cosine is opened: the server chooses the tensor,
            and the cosine of very few coordinates says nearly all about their direction.
        comparisons: `secure-comparisons`, whether the inner products of its update with others may be opened.
    """

    key: Ed25519PrivateKey
    helper: bytes
    smallest: int = 3
    norms: bool = False
    head: int = 16
    comparisons: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> NodeSettings:
        for name in ("secure-key", "secure-helper"):
            if not isinstance(config.get(name), str):
                raise ValueError(f"secure_mod needs {name} in the node's configuration")
        try:
            helper = bytes.fromhex(config["secure-helper"])
        except ValueError:
            helper = b""
        if len(helper) != KEY:
            raise ValueError(f"secure-helper must be a public key of {KEY} bytes in hexadecimal")
        smallest, head = config.get("secure-smallest", cls.smallest), config.get("secure-head", cls.head)
        if type(smallest) is not int or smallest < 3 or type(head) is not int or head < 1:
            raise ValueError("secure-smallest must be a whole number from 3, and secure-head one from 1")
        norms, comparisons = config.get("secure-norms", cls.norms), config.get("secure-comparisons", cls.comparisons)
        if type(norms) is not bool or type(comparisons) is not bool:
            raise ValueError("secure-norms and secure-comparisons must be true or false")
        return cls(read_private_key(Path(config["secure-key"])), helper, smallest, norms, head, comparisons)

    def check(self, terms: Terms) -> None:
        """Refuse terms that open more than this node agrees to."""
        if terms.smallest < self.smallest:
            raise RefusedTicket(f"sums of {terms.smallest} clients may be opened, and this node needs {self.smallest}")
        if not terms.compares and terms.head < self.head:
            raise RefusedTicket(
                f"the cosine of {terms.head} coordinates would be opened, and this node needs {self.head}"
            )
        if terms.norm_limit is not None and not self.norms:
            raise RefusedTicket("norms of updates would be opened, and this node's secure-norms is false")
        if terms.compares and not self.comparisons:
            raise RefusedTicket("products of updates would be opened, and this node's secure-comparisons is false")


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for `ClientApp(mods=[secure_mod, …])`: the server gets a report, never a model. It must be the first.

    A message that asks for training is answered with an error unless it holds a valid ticket of the node's own helper.
    Replies to other messages must hold no arrays. The metrics of training are dropped.
    """
    try:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return _check_other(call_next(message, context))
        return _train(message, context, call_next)
    except Exception as problem:  # an error's text may hold numbers of the app: only its kind leaves the node
        log_failure(log, problem, "no report is sent")
        reason = str(problem) if isinstance(problem, RefusedTicket) else f"no report: {type(problem).__name__}"
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)


def _train(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    settings, record = NodeSettings.of(context.node_config), SecureRecord.take(message)
    settings.check(record.terms)
    model = SentModel.of(to_numpy(_get_arrays(message)), record.layer or None)
    parts = ModelParts(model.layout, None if record.terms.compares else model.layout.find_layer(record.layer))
    others = digest_others(message, model.arrays, model.layout, context.run_config)
    _check_model(model, parts, record, settings.helper, others)
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError("the app returned an error")
    trained = to_numpy(_get_arrays(reply))
    if {name: array.shape for name, array in trained.items()} != {k: a.shape for k, a in model.arrays.items()}:
        raise ValueError("the app's arrays have other names or shapes than the model's")
    theta = encode_public_head(to_floats(model.params[parts.head]))
    encoded = parts.encode(model.compute_updates([trained])[0], theta, record.terms)
    report = write_report(encoded, theta, record.terms, record.ticket, settings.key)
    array = Array(np.frombuffer(report.to_bytes(), np.uint8))
    return Message(RecordDict({"arrays": ArrayRecord({REPORT: array})}), reply_to=message)


def _check_model(model: SentModel, parts: ModelParts, record: SecureRecord, helper: bytes, others: bytes) -> None:
    """Everybody must train the model that the ticket names, or a sum could be taken apart."""
    terms = record.terms
    record.ticket.check(helper, terms.digest, parts.digest(model.params), others)
    if (*parts.sizes, parts.buffer_units(model.params)) != (terms.head, terms.weights, terms.buffers, terms.units):
        raise RefusedTicket("the terms are for a model of another form than the one that came with them")


def _check_other(reply: Message) -> Message:
    if not reply.has_error() and reply.content.array_records:
        raise ValueError("only reports may hold arrays")
    return reply


def _get_arrays(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise ValueError(f"secure_mod needs exactly one record of arrays, got {len(records)}")
    return records[0]
