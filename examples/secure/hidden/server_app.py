"""The server: FedAvg behind a defense on updates that it does not see. It keeps every message that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from digits.server_app import evaluate
from digits.task import build_network
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from cosdefense import get
from cosdefense.flower import Defended
from cosdefense.secure import RemoteHelper, Secure
from cosdefense.secure.comparison import Masked, Products, Projected, Weights
from cosdefense.secure.exchange import Checks, Reports, Settled, TicketRequest
from cosdefense.secure.ticket import Ticket

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    config = context.run_config
    nodes, secrets, folder = int(config["nodes"]), Path(str(config["secrets"])), Path(str(config["messages"]))
    triples = secrets / "leader.triples"  # from the dealer, for rules that compare clients
    helper = RemoteHelper(
        str(config["helper"]), secrets / "leader.crt", secrets / "helper.crt",
        triples=triples if triples.exists() else None,
    )  # fmt: skip
    defended = RecordingDefended(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes),
        Secure(get(str(config["defense"])), clip=4.0, colluders=0.2),
        helper=RecordingHelper(helper, folder),
        run_config=config,
        checkpoint_dir=str(config["checkpoint-dir"]),
        deadline=float(config["deadline"]),
    )
    defended.folder = folder
    start = ArrayRecord(build_network().state_dict())
    defended.start(grid, start, num_rounds=int(config["num-server-rounds"]), evaluate_fn=evaluate)


class RecordingDefended(Defended):
    """Writes all replies of clients to a folder, to be searched. Use `Defended` in your own app."""

    folder: Path

    def aggregate_train(self, server_round: int, replies: Iterable[Message], missing: Sequence[Any] = ()) -> Any:
        received = list(replies)
        for number, reply in enumerate(received):
            if reply.has_error():  # of a node that failed, or that is gone: it has no content
                continue
            arrays = [a.data for r in reply.content.array_records.values() for a in r.values()]
            others = [repr(r) for r in reply.content.values() if not isinstance(r, ArrayRecord)]
            name = f"reply-{server_round}-{number}"
            (self.folder / name).write_bytes(b"".join(arrays) + "".join(others).encode())
        return super().aggregate_train(server_round, received, missing)


class RecordingHelper:
    """Writes everything that is sent to the helper, what it answers, and the terms of each ticket."""

    def __init__(self, helper: RemoteHelper, folder: Path) -> None:
        self._helper, self._folder, self._numbers = helper, folder, count()
        self.triples = helper.triples

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        self._terms, ticket = request.terms, self._helper.issue_ticket(request)
        self._keep(request.to_bytes(), ticket.to_bytes())
        (self._folder / f"terms-{ticket.number}").write_text(request.terms.to_json())
        return ticket

    def check_reports(self, reports: Reports) -> Checks:
        checks = self._helper.check_reports(reports)
        self._keep(reports.to_bytes(), checks.to_bytes())
        return checks

    def settle(self, leader: Checks) -> Settled:
        settled = self._helper.settle(leader)
        self._keep(leader.to_bytes(), settled.to_bytes(self._terms))
        return settled

    def project(self, leader: Checks) -> Projected:
        projected = self._helper.project(leader)
        self._keep(leader.to_bytes(), projected.to_bytes())
        return projected

    def multiply(self, leader: Masked) -> Products:
        products = self._helper.multiply(leader)
        self._keep(leader.to_bytes(), products.to_bytes())
        return products

    def settle_weights(self, leader: Weights) -> Settled:
        settled = self._helper.settle_weights(leader)
        self._keep(leader.to_bytes(), settled.to_bytes(self._terms))
        return settled

    def _keep(self, sent: bytes, answered: bytes) -> None:
        number = next(self._numbers)
        (self._folder / f"to-helper-{number}").write_bytes(sent)
        (self._folder / f"from-helper-{number}").write_bytes(answered)
