"""Every reply on its own: what is well formed is rebuilt from known pieces, the rest is refused with a reason."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message

from .arrays import Form, NDArray, read_arrays
from .reasons import BadReply, Reason

Metric = int | float | list[int] | list[float]
Lost = tuple[int, Reason, str]  # node, code, detail
GLANCE = 256  # values of each array; those that trained differ in the first few


@dataclass(frozen=True)
class Question:
    """What was asked this round, and what an answer must look like."""

    sent: Mapping[str, int]  # message → node; empty where the transport gave no identifiers
    nodes: frozenset[int]
    forms: Mapping[str, Form] | None  # of the model's arrays; None: answers carry metrics alone
    weighted_by: str  # the metric that says how many examples a client has


@dataclass(frozen=True, eq=False)
class Answer:
    """A reply that is well formed."""

    node: int
    message: Message
    arrays: Mapping[str, NDArray]  # views of the received bytes
    metrics: Mapping[str, Metric]  # without the number of examples
    examples: float
    glance: str  # what tells it apart from nearly all others: a digest of the beginnings


@dataclass
class Inspection:
    """What became of the replies of a round."""

    answers: list[Answer] = field(default_factory=list)  # in an order that does not depend on their arrival
    refused: list[Lost] = field(default_factory=list)

    def refuse(self, node: int, reason: Reason, detail: str) -> None:
        self.refused.append((node, reason, detail))


def inspect(replies: Iterable[Message], question: Question) -> Inspection:
    """Each reply is read in isolation: one that is broken costs itself, never the round."""
    found = Inspection()
    for reply in _each(replies, found):
        node = 0
        try:
            node = _asked_node(reply, question)
            _bind(reply, node)
            found.answers.append(_answer(reply, node, question))
        except BadReply as bad:
            found.refuse(node, bad.reason, str(bad))
        except Exception as error:  # whatever a hostile object does when it is looked at
            found.refuse(node, Reason.BROKEN, quoted(error))
    _sort(found.answers)
    _one_per_node(found)
    _agree_on_metrics(found)
    return found


def quoted(error: object) -> str:
    """What an error says, which a client may have written: in one line, short, and without control characters."""
    text = repr(str(error)[:120])
    return f"{type(error).__name__}: {text}" if isinstance(error, BaseException) else text


def _each(replies: Iterable[Message], found: Inspection) -> Iterator[Message]:
    """A transport that breaks while it delivers has delivered what came before."""
    try:
        yield from replies
    except Exception as error:
        found.refuse(0, Reason.BROKEN, f"the transport broke: {quoted(error)}")


def _asked_node(reply: Message, question: Question) -> int:
    """Whose answer this is: the node that the answered message went to, whatever the reply says of itself."""
    about = reply.metadata
    node = question.sent.get(about.reply_to_message_id, about.src_node_id if not question.sent else None)
    if node is None or node not in question.nodes:
        raise BadReply(
            Reason.UNBOUND, f"it answers no message of this round, and says it comes from {about.src_node_id}"
        )
    return int(node)


def _bind(reply: Message, node: int) -> None:
    if reply.has_error():  # first, because the transport reports lost replies under its own name
        raise BadReply(Reason.ERROR, f"the client failed: {quoted(reply.error.reason)}")
    if reply.metadata.src_node_id != node:
        raise BadReply(Reason.UNBOUND, f"it comes from node {reply.metadata.src_node_id}, which was not asked this")


def _answer(reply: Message, node: int, question: Question) -> Answer:
    content = reply.content
    arrays: Mapping[str, NDArray] = {}
    if question.forms is not None:
        if len(content.array_records) != 1:
            raise BadReply(Reason.RECORDS, f"needs exactly one record of arrays, got {len(content.array_records)}")
        arrays = read_arrays(next(iter(content.array_records.values())), question.forms)
    if len(content.metric_records) != 1:
        raise BadReply(Reason.RECORDS, f"needs exactly one record of metrics, got {len(content.metric_records)}")
    record: dict[str, Any] = dict(next(iter(content.metric_records.values())))
    examples = _examples(record, question.weighted_by)
    metrics = {key: value for key, value in sorted(record.items()) if key != question.weighted_by}
    for key, value in metrics.items():
        if not all(_is_finite(number) for number in (value if isinstance(value, list) else [value])):
            raise BadReply(Reason.METRICS, f"metric {key!r:.40} is not finite")
    return Answer(node, reply, arrays, metrics, examples, _digest(arrays, metrics, GLANCE))


def _examples(record: Mapping[str, Any], key: str) -> float:
    if key not in record:
        raise BadReply(Reason.EXAMPLES, f"needs the metric {key!r}")
    claim = record[key]
    if isinstance(claim, bool | list) or not _is_finite(claim) or not claim > 0:
        raise BadReply(Reason.EXAMPLES, f"{key} needs a finite positive number, got {claim!r:.40}")
    return float(claim)


def _is_finite(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False


def _one_per_node(found: Inspection) -> None:
    """Of several answers of one node the first in our order counts, whichever came first."""
    known: set[int] = set()
    for answer in list(found.answers):
        if answer.node in known:
            found.answers.remove(answer)
            found.refuse(answer.node, Reason.DUPLICATE, "this node has answered already")
        known.add(answer.node)


def _agree_on_metrics(found: Inspection) -> None:
    """Strategies average metrics key by key; who sends others than most do is refused."""
    if not found.answers:
        return
    votes = Counter(_kind(answer.metrics) for answer in found.answers)
    usual = max(votes, key=lambda kind: (votes[kind], kind))
    for answer in [answer for answer in found.answers if _kind(answer.metrics) != usual]:
        found.answers.remove(answer)
        found.refuse(answer.node, Reason.METRICS, "not the metrics that most clients send")


def _kind(metrics: Mapping[str, Metric]) -> tuple[tuple[str, int], ...]:
    """Names and lengths; -1 for a single number."""
    return tuple((key, len(value) if isinstance(value, list) else -1) for key, value in sorted(metrics.items()))


def _sort(answers: list[Answer]) -> None:
    """By content, then by node. All bytes are digested only where the beginnings do not tell answers apart."""
    seen = Counter(answer.glance for answer in answers)
    answers.sort(
        key=lambda answer: (
            answer.glance,
            _digest(answer.arrays, answer.metrics) if seen[answer.glance] > 1 else "",
            answer.node,
        )
    )


def _digest(arrays: Mapping[str, NDArray], metrics: Mapping[str, Metric], first: int | None = None) -> str:
    """Of the values, or the first of each array: whether they came row by row or column by column is all the same."""
    hashed = hashlib.blake2b(repr(sorted(metrics.items())).encode(), digest_size=16)
    for name, array in arrays.items():
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(array.flat[:first]).view("u1").data)
    return hashed.hexdigest()


def question_of(messages: Sequence[Message], forms: Mapping[str, Form] | None, weighted_by: str) -> Question:
    """From the messages as they were sent: the transport wrote their identifiers into them."""
    sent = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    sent.pop("", None)
    return Question(sent, frozenset(message.metadata.dst_node_id for message in messages), forms, weighted_by)
