"""Measures a round under secure aggregation beside the same round in the open: bytes, CPU seconds, memory.

python benchmarks/secure.py [--markdown] [--json FILE] [--quick] [--only TEXT]

Client, leader and helper run one after the other in this process, so each is measured alone; on two computers leader
and helper check reports at the same time. CPU seconds are those of all threads. Updates are drawn at random and as
long as the clip allows. The open round is the same defense without secrecy: Clip, CosDefense, Mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from measuring import Table, machine, options, report

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.filters import Clip, CosDefense, NormLimit
from cosdefense.secure import Secure
from cosdefense.secure.exchange import Checks, Outcome, Reports, Settled, TicketRequest
from cosdefense.secure.helper import Helper
from cosdefense.secure.leader import open_round
from cosdefense.secure.model import ModelParts
from cosdefense.secure.policy import Policy
from cosdefense.secure.report import Report, write_report
from cosdefense.secure.ticket import Ticket

# Name, clients, coordinates, coordinates of the head, buffers.
SIZES = (("ResNet-18", 10, 11_173_962, 5_120, 9_600), ("CNN", 100, 710_218, 1_280, 0))
QUICK = (("small", 10, 100_000, 1_280, 100),)


class MeasuredHelper:
    """A helper whose CPU seconds and messages are counted."""

    def __init__(self, helper: Helper) -> None:
        self.helper, self.seconds, self.received, self.sent = helper, dict[str, float](), 0, 0

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        with self._measure("ticket"):
            return self.helper.issue_ticket(request)

    def check_reports(self, reports: Reports) -> Checks:
        with self._measure("check"):
            checks = self.helper.check_reports(reports)
        self.received, self.sent = len(reports.to_bytes()), len(checks.to_bytes())
        return checks

    def settle(self, leader: Checks) -> Settled:
        with self._measure("settle"):
            settled = self.helper.settle(leader)
        self.received += len(leader.to_bytes())
        return settled

    @contextmanager
    def _measure(self, step: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[step] = time.process_time() - start


def measure(n: int, d: int, head: int, buffers: int, secure: Secure) -> dict[str, float]:
    """Figures of one round."""
    shapes = (("body", (d - head - buffers,)), ("head.weight", (head, 1)), ("norm.running_var", (buffers,)))
    layout = Layout(shapes if buffers else shapes[:2], "head.weight", d - buffers)
    rng = torch.Generator().manual_seed(0)
    params = torch.rand(d, generator=rng) + 0.5
    parts = ModelParts(layout, "head.weight")
    terms, theta = secure.terms(parts, params, n, None), parts.theta(params)
    keys = [Ed25519PrivateKey.generate() for _ in range(n)]
    nodes = tuple(key.public_key().public_bytes_raw() for key in keys)
    helper = MeasuredHelper(Helper(Ed25519PrivateKey.generate(), nodes, Policy(norms=True)))
    ticket = helper.issue_ticket(TicketRequest(terms, parts.head_bytes(params), parts.rest_digest(params)))
    rows, reports = torch.empty(n, d), list[Report]()
    client = 0.0
    for i, key in enumerate(keys):
        torch.randn(d, generator=rng, out=rows[i])
        rows[i] *= 5.0 / d**0.5
        start = time.process_time()
        reports.append(write_report(parts.encode(rows[i], theta, terms), theta, terms, ticket, key))
        client += (time.process_time() - start) / n
    start = time.process_time()
    opened = open_round(reports, ticket, terms, theta, None, helper)
    everything = time.process_time() - start
    assert set(opened.outcomes) == {Outcome.VALID}
    assert opened.words is not None, opened.decision.refused
    check, settle = helper.seconds["check"], helper.seconds["settle"]
    leader = everything - check - settle
    plain = Defense((Clip(4.0), CosDefense()), Mean())
    start = time.process_time()
    plain(Cohort.of(rows, params, layout), plain.init())
    report_bytes = len(reports[0].to_bytes())
    half_sum = len(opened.words) * terms.ring.width + 20 * terms.head
    return {
        "plaintext upload, MB": 4e-6 * d,
        "report, MB": 1e-6 * report_bytes,
        "report / plaintext": report_bytes / (4 * d),
        "client, s": client,
        "leader: its halves and the opening, s": leader,
        "helper: its halves, s": check,
        "helper: settlement, s": settle,
        "after the last report, s": max(leader, check) + settle,
        "the open round, s": time.process_time() - start,
        "leader to helper, MB": 1e-6 * helper.received,
        "helper to leader, MB": 1e-6 * (helper.sent + half_sum),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model only")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the columns whose title holds this text")
    given = parser.parse_args()
    modes = {
        "prove": Secure(get("cosdefense"), colluders=0.0),
        "scale": Secure(Defense((NormLimit(), CosDefense()), Mean()), colluders=0.0),
    }
    columns = {
        title: measure(n, d, head, buffers, secure)
        for name, n, d, head, buffers in (QUICK if given.quick else SIZES)
        for mode, secure in modes.items()
        if given.only in (title := f"{name}, n = {n}, {mode}")
    }
    rows = [[row, *(f"{column[row]:.4g}" for column in columns.values())] for row in next(iter(columns.values()))]
    about = machine("numpy", "cryptography")
    report(given, about, [Table("A round, in CPU seconds and bytes", ("", *columns), rows)], columns)


if __name__ == "__main__":
    main()
