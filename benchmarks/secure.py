"""Measures a round under secure aggregation beside the same round in the open: bytes, CPU seconds, memory.

python benchmarks/secure.py [--markdown] [--json FILE] [--quick] [--only TEXT]

Client, leader and helper run one after the other in this process, so each is measured alone; on two computers leader
and helper check reports at the same time. The leader is `Defended` with a helper, from replies to the new model. The
open round is `Defended` with the same defense without secrecy: Clip, CosDefense, Mean; where updates are compared,
opposed clusters ("compare") or two references ("mean"). Of the running mean it is the first round: the mean learns,
and is not yet projected. CPU seconds are those of all threads. Memory is the growth of the resident set at its peak,
without the replies. Updates are drawn at random and longer than the clip allows.

Flower's SecAgg+ is its client's last step alone, on the same update: quantize, mask, and serialize. It filters nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_overhead import Model, Nodes, plain, prepare, to_record
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_mod
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from measuring import Table, machine, options, peak_memory, report

from cosdefense import Defense, get
from cosdefense.aggregators import Mean
from cosdefense.filters import Clip, CosDefense, NormLimit
from cosdefense.flower import Defended
from cosdefense.flower.secure_record import REPORT
from cosdefense.secure import Secure
from cosdefense.secure.comparing_helper import ComparingHelper
from cosdefense.secure.comparison import Masked, Products, Projected, Weights
from cosdefense.secure.exchange import Checks, Reports, Settled, TicketRequest
from cosdefense.secure.policy import Policy
from cosdefense.secure.report import write_report
from cosdefense.secure.streams import KEY
from cosdefense.secure.terms import MEAN_ROWS
from cosdefense.secure.ticket import Ticket
from cosdefense.secure.triples import TripleHalf, TripleStock, deal

# Name, clients, coordinates, coordinates of the head, buffers.
SIZES = (("ResNet-18", 10, 11_173_962, 5_120, 9_600), ("CNN", 100, 710_218, 1_280, 0))
QUICK = (("small", 10, 100_000, 1_280, 100),)
NEIGHBORS = 9  # with whom a client of SecAgg+ shares masks: all others of ten
MB = 1e-6


class Unlimited(TripleStock):
    """Gives out its only triple again: the same round is measured twice."""

    def take(self, index: int | None = None) -> TripleHalf:
        return self._read(0)


class MeasuredHelper:
    """A helper whose CPU seconds, memory and messages are counted. The same request again gets the answer at once."""

    def __init__(self, helper: ComparingHelper, triples: TripleStock) -> None:
        self.helper, self.seconds, self.memory, self.triples = helper, dict[str, float](), 0, triples
        self.received = self.sent = 0
        self.all_seconds = 0.0  # with the measuring itself
        self.kept = dict[str, Any]()

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        self.terms = request.terms
        ticket: Ticket = self._measure("ticket", lambda: self.helper.issue_ticket(request))
        return ticket

    def check_reports(self, reports: Reports) -> Checks:
        if "check" not in self.kept:
            self.received += len(reports.to_bytes())
            checks: Checks = self._measure("check", lambda: self.helper.check_reports(reports))
            self.sent += len(checks.to_bytes())
        return self.kept["check"]  # type: ignore[no-any-return]

    def settle(self, leader: Checks) -> Settled:
        if "settle" not in self.kept:
            self.received += len(leader.to_bytes())
            settled: Settled = self._measure("settle", lambda: self.helper.settle(leader))
            self.sent += len(settled.to_bytes(self.terms))
        return self.kept["settle"]  # type: ignore[no-any-return]

    def project(self, leader: Checks) -> Projected:
        if "project" not in self.kept:
            self.received += len(leader.to_bytes())
            projected: Projected = self._measure("project", lambda: self.helper.project(leader))
            self.sent += len(projected.to_bytes())
        return self.kept["project"]  # type: ignore[no-any-return]

    def multiply(self, leader: Masked) -> Products:
        if "multiply" not in self.kept:
            self.received += len(leader.to_bytes())
            products: Products = self._measure("multiply", lambda: self.helper.multiply(leader))
            self.sent += len(products.to_bytes())
        return self.kept["multiply"]  # type: ignore[no-any-return]

    def settle_weights(self, leader: Weights) -> Settled:
        if "settle" not in self.kept:
            self.received += len(leader.to_bytes())
            settled: Settled = self._measure("settle", lambda: self.helper.settle_weights(leader))
            self.sent += len(settled.to_bytes(self.terms))
        return self.kept["settle"]  # type: ignore[no-any-return]

    def _measure(self, step: str, call: Callable[[], Any]) -> Any:
        def timed() -> None:
            start = time.process_time()
            self.kept[step] = call()
            self.seconds[step] = time.process_time() - start

        start = time.process_time()
        self.memory = max(self.memory, peak_memory(timed))
        self.all_seconds += time.process_time() - start
        return self.kept[step]


class InTurn(ThreadPoolExecutor):
    """Runs a call when it is submitted: what the helper needs must not count for the leader."""

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:  # type: ignore[override]
        done = Future[Any]()
        done.set_result(call(*arguments))
        return done


def make_model(d: int, head: int, buffers: int) -> Model:
    rng = np.random.default_rng(0)
    shapes = {"body": (d - head - buffers,), "head.weight": (head, 1)} | (
        {"norm.running_var": (buffers,)} if buffers else {}
    )
    return {name: rng.random(shape, dtype=np.float32) + np.float32(0.5) for name, shape in shapes.items()}


def make_reply(node: int, content: RecordDict) -> Message:
    metadata = Metadata(
        run_id=1, message_id=f"reply-{node}", src_node_id=node, dst_node_id=1, group_id="",
        reply_to_message_id=f"message-{node}", created_at=0.0, ttl=600.0, message_type="train",
    )  # fmt: skip
    return make_message(metadata, content=content)


def measure(n: int, d: int, head: int, buffers: int, secure: Secure) -> dict[str, float]:
    """Figures of one round."""
    model = make_model(d, head, buffers)
    keys = [Ed25519PrivateKey.generate() for _ in range(n)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    start = time.process_time()
    dealt = deal(n + MEAN_ROWS * any(part.keeps_mean for part in secure.comparing))
    dealer = time.process_time() - start
    assert dealt[1].products is not None
    stocks = [Unlimited(bytes(KEY), 1, [half].__getitem__) for half in dealt]
    policy = Policy(norms=True, comparisons=True)
    helper = MeasuredHelper(ComparingHelper(Ed25519PrivateKey.generate(), nodes, policy, triples=stocks[1]), stocks[0])
    defended = Defended(plain(n), secure, helper=helper, run_config={}, head="head.weight")
    prepare(defended, n, model)
    assert defended.leader is not None
    assert defended.leader.current is not None
    current = defended.leader.current
    rng, update = torch.Generator().manual_seed(0), torch.empty(d)
    replies, open_replies, client = list[Message](), list[Message](), 0.0
    for node, key in zip(Nodes(n).get_node_ids(), keys, strict=True):
        update = torch.randn(d, generator=rng, out=update).mul_(5.0 / d**0.5)
        start = time.process_time()
        encoded = current.parts.encode(update, current.theta, current.terms)
        written = write_report(encoded, current.theta, current.terms, current.record.ticket, key).to_bytes()
        client += (time.process_time() - start) / n
        body = ArrayRecord({REPORT: Array(np.frombuffer(written, np.uint8))})
        replies.append(make_reply(node, RecordDict({"arrays": body})))
        if n * d < 2e8:  # otherwise both kinds of replies do not fit into memory
            moved = {k: model[k] + update[where].numpy().reshape(model[k].shape) for k, where in slices(defended)}
            metrics = MetricRecord({"num-examples": 1})
            open_replies.append(make_reply(node, RecordDict({"arrays": to_record(moved), "metrics": metrics})))
    start, ticket = time.process_time(), helper.all_seconds
    with patch("cosdefense.secure.leader.ThreadPoolExecutor", InTurn):
        result, _ = defended.aggregate_train(1, replies)
    leader = time.process_time() - start - (helper.all_seconds - ticket)
    assert result is not None
    check, settle = helper.seconds["check"], helper.seconds["settle"]
    compare = helper.seconds.get("project", 0.0) + helper.seconds.get("multiply", 0.0)
    memory = peak_memory(lambda: defended.aggregate_train(1, replies))
    compared = Defense(secure.filters, secure.aggregator)
    same = compared if secure.compares else Defense((Clip(4.0), CosDefense()), Mean())
    opened = prepare(Defended(plain(n), same, head="head.weight"), n, model)
    start = time.process_time()
    assert opened.aggregate_train(1, open_replies)[0] is not None
    in_the_open = time.process_time() - start
    masked, masked_bytes = measure_secagg(update)
    return {
        "plaintext upload, MB": MB * 4 * d,
        "report, MB": MB * len(written),
        "report / plaintext": len(written) / (4 * d),
        "SecAgg+ upload / plaintext": masked_bytes / (4 * d),
        "client, s": client,
        "SecAgg+ client, s": masked,
        "leader: its halves and the opening, s": leader,
        "helper: its halves, s": check,
        "helper: projections and products, s": compare,
        "helper: settlement, s": settle,
        "after the last report, s": max(leader, check) + compare + settle,
        "`Defended` in the open, s": in_the_open,
        "leader to helper, MB": MB * helper.received,
        "helper to leader, MB": MB * helper.sent,
        "memory of the leader, MB": MB * memory,
        "memory of the helper, MB": MB * helper.memory,
        "dealer, s": dealer * secure.compares,
        "dealer to helper, MB": MB * (KEY + dealt[1].products.nbytes) * secure.compares,
    }


def slices(defended: Defended) -> list[tuple[str, slice]]:
    assert defended.leader is not None
    assert defended.leader.current is not None
    return list(defended.leader.current.model.layout.slices.items())


def measure_secagg(update: torch.Tensor) -> tuple[float, int]:
    """CPU seconds and bytes of the masked vector of a client of Flower's SecAgg+, with its default settings."""
    start = time.process_time()
    vector = quantize([update.numpy()], 8.0, 1 << 22)
    for mask in range(1 + NEIGHBORS):  # its own, and one with each neighbor
        vector = parameters_addition(vector, pseudo_rand_gen(bytes([mask]) * 32, 1 << 32, [update.shape]))
    sent = Array(parameters_mod(vector, 1 << 32)[0])
    return time.process_time() - start, len(sent.data)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model only")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the columns whose title holds this text")
    given = parser.parse_args()
    modes = {
        "prove": Secure(get("cosdefense"), colluders=0.0),
        "scale": Secure(Defense((NormLimit(), CosDefense()), Mean()), colluders=0.0),
        "compare": Secure(get("opposed-clusters"), colluders=0.0),
        "mean": Secure(get("two-references"), colluders=0.0),
    }
    columns = {
        title: measure(n, d, head, buffers, secure)
        for name, n, d, head, buffers in (QUICK if given.quick else SIZES)
        for mode, secure in modes.items()
        if given.only in (title := f"{name}, n = {n}, {mode}")
    }
    rows = [[row, *(f"{column[row]:.4g}" for column in columns.values())] for row in next(iter(columns.values()))]
    about = machine("numpy", "cryptography", "flwr")
    report(given, about, [Table("A round, in CPU seconds and bytes", ("", *columns), rows)], columns)


if __name__ == "__main__":
    main()
