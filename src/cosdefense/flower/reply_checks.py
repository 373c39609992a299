"""Checks every reply of a round independently. A malformed reply is rejected with a reason; the others count."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from .arrays import ArraySpec, CheckedArray, NDArray, count_bytes, read_arrays
from .metric_checks import Metric, find_wild_losses, read_metrics
from .reasons import BadReply, Reason, Rejection, quote_error
from .sent_model import SentModel
from .strategy_inputs import StrategyMetrics
from .update_norms import measure_updates

PREFIX_LENGTH = 256  # values of each array; models that were trained differ in the first few


@dataclass(frozen=True)
class Request:
    """What was sent to the nodes in this round, and what a reply must contain."""

    nodes_by_message: Mapping[str, int]  # message id → node; empty if the transport assigned no ids
    messages: Mapping[int, Message]  # by node
    model: SentModel | None  # None: replies carry no model
    reads: StrategyMetrics | None  # what the wrapped strategy computes with; None: replies carry no metrics
    specs: Mapping[str, ArraySpec]  # the arrays of a reply; empty: it carries metrics only

    @classmethod
    def of(
        cls,
        messages: Sequence[Message],
        model: SentModel | None,
        reads: StrategyMetrics | None,
        specs: Mapping[str, ArraySpec] | None = None,
    ) -> Request:
        """From the messages after they were sent: the transport has written their ids into them.

        `specs` are those of the model unless replies carry other arrays.
        """
        by_message = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        by_message.pop("", None)
        by_node = {message.metadata.dst_node_id: message for message in messages}
        return cls(by_message, by_node, model, reads, specs or (model.specs if model else {}))


@dataclass(frozen=True, eq=False)
class ValidReply:
    """A reply that passed all checks."""

    node: int
    request: Message  # which it answers
    serialized: Mapping[str, CheckedArray]  # its arrays, with headers that no client wrote
    arrays: Mapping[str, NDArray]  # views of their numbers, C-contiguous and read-only
    metrics: Mapping[str, Metric]  # without the number of examples
    examples: float
    prefix_digest: str  # of the metrics and the first values of each array
    norm: float = 0.0  # of the update: the trainable part of the arrays minus the model


@dataclass
class CheckedReplies:
    """The replies of a round, valid and rejected."""

    valid: list[ValidReply] = field(default_factory=list)  # in an order that does not depend on arrival
    rejected: list[Rejection] = field(default_factory=list)
    n_bytes: int = 0  # of the arrays in all of them

    def reject(self, node: int, reason: Reason, detail: str) -> None:
        self.rejected.append(Rejection(node, reason, detail))


def check_replies(replies: Iterable[Message], request: Request) -> CheckedReplies:
    """Check each reply independently: a broken one cannot affect the others."""
    checked = CheckedReplies()
    for reply in _iterate(replies, checked):
        node = 0
        try:
            node = _find_node(reply, request)
            _check_sender(reply, node)
            checked.n_bytes += sum(count_bytes(r) for r in reply.content.values() if isinstance(r, ArrayRecord))
            checked.valid.append(_read_reply(reply, node, request))
        except BadReply as bad:
            checked.reject(node, bad.reason, str(bad))
        except Exception as error:  # a hostile object may raise anything when it is read
            checked.reject(node, Reason.UNREADABLE, quote_error(error))
    _measure_norms(checked, request.model)
    _sort(checked.valid)
    _reject_duplicates(checked)
    _reject_unusual_metrics(checked)
    _reject_wild_losses(checked, request.reads.loss if request.reads else None)
    return checked


def _iterate(replies: Iterable[Message], checked: CheckedReplies) -> Iterator[Message]:
    """If the transport fails while it delivers, the replies before the failure count."""
    try:
        yield from replies
    except Exception as error:
        checked.reject(0, Reason.UNREADABLE, f"the transport failed: {quote_error(error)}")


def _find_node(reply: Message, request: Request) -> int:
    """The node that the answered message was sent to. What the reply claims about its sender is not used."""
    metadata = reply.metadata
    if request.nodes_by_message:
        node = request.nodes_by_message.get(metadata.reply_to_message_id)
    else:
        node = metadata.src_node_id
    if node is None or node not in request.messages:
        raise BadReply(
            Reason.UNSOLICITED, f"it answers no message of this round and claims to be from node {metadata.src_node_id}"
        )
    return int(node)


def _check_sender(reply: Message, node: int) -> None:
    if reply.has_error():  # first, because the transport reports lost replies with its own node id
        raise BadReply(Reason.ERROR, f"the client failed: {quote_error(reply.error.reason)}")
    if reply.metadata.src_node_id != node:
        raise BadReply(
            Reason.UNSOLICITED, f"it comes from node {reply.metadata.src_node_id}, which did not get this message"
        )


def _read_reply(reply: Message, node: int, request: Request) -> ValidReply:
    serialized: Mapping[str, CheckedArray] = {}
    arrays: Mapping[str, NDArray] = {}
    if request.specs:
        serialized = read_arrays(_get_record(reply, ArrayRecord, "arrays"), request.specs)
        arrays = {name: spec.view(serialized[name]) for name, spec in request.specs.items()}
    examples, metrics = 1.0, dict[str, Metric]()
    if request.reads is not None:
        examples, metrics = read_metrics(_get_record(reply, MetricRecord, "metrics"), request.reads)
    digest = _digest(arrays, metrics, PREFIX_LENGTH)
    return ValidReply(node, request.messages[node], serialized, arrays, metrics, examples, digest)


def _get_record(reply: Message, kind: type, name: str) -> Any:
    """The only record of a kind. Faster than Flower's `array_records`, which builds a new dictionary at every use."""
    records = [record for record in reply.content.values() if isinstance(record, kind)]
    if len(records) != 1:
        raise BadReply(Reason.RECORDS, f"needs exactly one record of {name}, got {len(records)}")
    return records[0]


def _measure_norms(checked: CheckedReplies, model: SentModel | None) -> None:
    """Fill in the norms, and reject replies that are not finite."""
    if model is None:
        return
    replies, checked.valid = checked.valid, []
    norms = measure_updates(model, [reply.arrays for reply in replies])
    for reply, norm in zip(replies, norms, strict=True):
        if isinstance(norm, BadReply):
            checked.reject(reply.node, norm.reason, str(norm))
        else:
            checked.valid.append(replace(reply, norm=norm))


def _sort(replies: list[ValidReply]) -> None:
    """By content, then by node. Whole models are digested only where their first values are the same."""
    counts = Counter(reply.prefix_digest for reply in replies)
    replies.sort(
        key=lambda reply: (
            reply.prefix_digest,
            _digest(reply.arrays, reply.metrics) if counts[reply.prefix_digest] > 1 else "",
            reply.node,
        )
    )


def _digest(arrays: Mapping[str, NDArray], metrics: Mapping[str, Metric], first: int | None = None) -> str:
    """Of all values, or of the first of each array."""
    hashed = hashlib.blake2b(repr(sorted(metrics.items())).encode(), digest_size=16)
    for name, array in arrays.items():
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(array.reshape(-1)[:first]).view("u1").data)
    return hashed.hexdigest()


def _reject_duplicates(checked: CheckedReplies) -> None:
    """One reply per node: the first in sorted order, whichever arrived first."""
    replies, first = checked.valid, dict[int, ValidReply]()
    for reply in replies:
        if first.setdefault(reply.node, reply) is not reply:
            checked.reject(reply.node, Reason.DUPLICATE, "another reply of this node counts")
    checked.valid = list(first.values())


def _reject_unusual_metrics(checked: CheckedReplies) -> None:
    """Strategies average metrics key by key, so all replies need the keys that most clients send."""
    if not checked.valid:
        return
    replies, shapes = checked.valid, [_get_metric_shapes(reply.metrics) for reply in checked.valid]
    votes = Counter(shapes)
    usual = max(votes, key=lambda shape: (votes[shape], shape))
    checked.valid = [reply for reply, shape in zip(replies, shapes, strict=True) if shape == usual]
    for reply, shape in zip(replies, shapes, strict=True):
        if shape != usual:
            checked.reject(reply.node, Reason.METRICS, "not the metrics that most clients send")


def _reject_wild_losses(checked: CheckedReplies, key: str | None) -> None:
    """Where a strategy computes with a loss, an extreme one would decide the round alone."""
    if key is None:
        return
    replies = checked.valid
    wild = find_wild_losses([reply.metrics for reply in replies], key)
    checked.valid = [reply for i, reply in enumerate(replies) if i not in wild]
    for i, detail in wild.items():
        checked.reject(replies[i].node, Reason.METRICS, detail)


def _get_metric_shapes(metrics: Mapping[str, Metric]) -> tuple[tuple[str, int], ...]:
    """Names and lengths; the length of a single number is -1."""
    return tuple((key, len(value) if isinstance(value, list) else -1) for key, value in sorted(metrics.items()))
