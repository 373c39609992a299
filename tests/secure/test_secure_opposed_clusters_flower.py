"""`Defended` with opposed clusters on reports: the leader compares clients without seeing an update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

import torch
from federations import content, model, record, reply, to_arrays, trained
from flwr.app import ConfigRecord, Context, Message, RecordDict
from secure_federations import NODES, Federation, defend, make_context, start, to_bytes, train

from cosdefense import Cohort, Layout, get
from cosdefense.core import derive
from cosdefense.flower import AllRoundsSkipped
from cosdefense.flower.node_ids import to_signed
from cosdefense.flower.secure_record import KEY
from cosdefense.secure import Secure
from cosdefense.secure.comparing_helper import ComparingHelper
from cosdefense.secure.policy import Policy
from cosdefense.secure.triple_files import TripleFile, deal_files

OPPOSED = Secure(get("opposed-clusters"), colluders=0.0)


class Link:
    """A helper and the leader's triples, as `RemoteHelper` has both."""

    def __init__(self, federation: Comparing) -> None:
        self.federation, self.triples = federation, federation.files[0].stock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.federation.helper, name)

    def issue_ticket(self, request: Any) -> Any:
        return self.federation.helper.issue_ticket(request)

    def check_reports(self, reports: Any) -> Any:
        return self.federation.helper.check_reports(reports)

    def settle(self, leader: Any) -> Any:
        return self.federation.helper.settle(leader)

    def project(self, leader: Any) -> Any:
        return self.federation.helper.project(leader)

    def multiply(self, leader: Any) -> Any:
        return self.federation.helper.multiply(leader)

    def settle_weights(self, leader: Any) -> Any:
        return self.federation.helper.settle_weights(leader)


@dataclass
class Comparing(Federation):
    """A federation whose nodes agree to comparisons, and whose servers have triples."""

    helper: ComparingHelper = None  # type: ignore[assignment]
    rounds: int = 4

    def __post_init__(self) -> None:
        paths = self.folder / "leader.triples", self.folder / "helper.triples"
        deal_files(*paths, len(self.nodes), self.rounds)
        self.files = TripleFile(paths[0], "leader"), TripleFile(paths[1], "helper")
        self.changes = {node: {"secure-comparisons": True} for node in self.nodes}
        super().__post_init__()

    def restart(self) -> ComparingHelper:
        self.helper = ComparingHelper(
            self.identity, self.roster, Policy(comparisons=True), self.folder / "helper.state",
            triples=self.files[1].stock(),
        )  # fmt: skip
        return self.helper

    def close(self) -> None:
        for file in self.files:
            file.close()


def reverse(message: Message, context: Context) -> Message:
    """The opposite of what an honest node trains, ten times as long."""
    arrays = to_arrays(message.content["arrays"])
    moved = trained(arrays, context.node_id, 1)
    floats = [name for name, array in arrays.items() if array.dtype == np.float32]
    changed = {name: (arrays[name] - 10 * (moved[name] - arrays[name])).astype(np.float32) for name in floats}
    return reply(message, content({**moved, **changed}, {"num-examples": 1}))


@pytest.mark.slow
def test_the_leader_decides_and_computes_as_the_twin(tmp_path: Path) -> None:
    federation = Comparing(tmp_path, apps={NODES[2]: reverse})
    defended, arrays = defend(federation, OPPOSED, helper=Link(federation)), model()
    twin, state, layout = OPPOSED.plain, OPPOSED.init(), Layout.of(model())
    for number in (1, 2, 3):
        grid = federation.grid()
        messages = list(defended.configure_train(number, record(arrays), ConfigRecord(), grid))
        result, metrics = defended.aggregate_train(number, list(grid.send_and_receive(messages)))
        assert result is not None
        assert metrics is not None
        assert defended.record is not None
        params, plain = layout.flatten(arrays), {}
        for message in messages:
            node = message.metadata.dst_node_id
            bare = reply(message, RecordDict({k: v for k, v in message.content.items() if k != KEY}))
            answer = federation.apps.get(node, train)(bare, make_context(node))
            plain[node] = layout.flatten(to_arrays(answer.content["arrays"])) - params
        rows = torch.stack([plain[node] for node in defended.record.clients])
        clients = torch.tensor([to_signed(node) for node in defended.record.clients])
        verdict, state = twin(Cohort.of(rows, params, layout, clients, seed=derive(3, "defense", number)), state)
        assert verdict.skipped is None
        assert list(defended.record.weights) == verdict.weights.tolist()
        for name, scores in verdict.evidence.items():
            found = [np.nan if score is None else score for score in defended.record.scores[name]]
            assert found == pytest.approx(scores.tolist(), nan_ok=True)
        weights = dict(zip(defended.record.clients, defended.record.weights, strict=True))
        assert weights[NODES[2]] == 0
        assert sum(weight > 0 for weight in weights.values()) == 5
        expected, arrays = layout.unflatten(params + verdict.update), to_arrays(result)
        for name, array in arrays.items():
            assert np.array_equal(array, expected[name].numpy() if name in expected else model()[name]), name
    assert len(federation.files[0].used.read_text().split()) == 2
    federation.close()


def test_rounds_without_triples_are_skipped(tmp_path: Path) -> None:
    federation = Comparing(tmp_path, rounds=1)
    defended, arrays = defend(federation, OPPOSED, helper=Link(federation)), start()
    for number, needed in ((1, None), (2, "all 1 triples were used: the dealer must deal new ones")):
        grid = federation.grid()
        messages = list(defended.configure_train(number, arrays, ConfigRecord(), grid))
        result, _ = defended.aggregate_train(number, list(grid.send_and_receive(messages)))
        assert defended.record is not None
        if needed is None:
            assert defended.record.skipped is None
            assert result is not None
            arrays = result
        else:
            assert needed in str(defended.record.skipped)
            assert result is None or to_bytes(result) == to_bytes(arrays)
    federation.close()


def test_a_restarted_helper_costs_one_round(tmp_path: Path) -> None:
    """It forgot the reports, and goes on with the next triple."""
    federation = Comparing(tmp_path)
    link = Link(federation)
    defended, arrays, skipped = defend(federation, OPPOSED, helper=link), start(), []
    for number in (1, 2, 3):
        grid = federation.grid()
        messages = list(defended.configure_train(number, arrays, ConfigRecord(), grid))
        replies = list(grid.send_and_receive(messages))
        if number == 2:
            federation.restart()
        result, _ = defended.aggregate_train(number, replies)
        assert defended.record is not None
        skipped.append(defended.record.skipped)
        arrays = result if result is not None else arrays
    assert skipped[0] is skipped[2] is None
    assert "is not the current one" in str(skipped[1])
    federation.close()


def test_nodes_and_servers_must_agree_to_comparisons(tmp_path: Path) -> None:
    federation = Comparing(tmp_path)
    federation.changes = {}
    defended = defend(federation, OPPOSED, helper=Link(federation))
    with pytest.raises(AllRoundsSkipped):
        defended.start(federation.grid(), start(), num_rounds=1)
    assert all("secure-comparisons is false" in str(answer.error.reason) for answer in federation.replies)
    with pytest.raises(ValueError, match="needs a dealer's triples"):
        defend(federation, OPPOSED)
    federation.changes = {NODES[0]: {"secure-comparisons": "yes"}}
    federation.replies.clear()
    with pytest.raises(AllRoundsSkipped):
        defended.start(federation.grid(), start(), num_rounds=1)
    federation.close()
