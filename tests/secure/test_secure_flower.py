"""`Defended` with a helper: the leader sees reports, decides as the twin does, and skips what it must."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

import torch
from federations import NODES as ALL_NODES
from federations import Arrays, LocalGrid, content, model, record, reply, to_arrays, trained
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.serverapp.strategy import FedAvg, QFedAvg
from forgeries import write_forged
from secure_examples import Example
from secure_federations import (
    NODES,
    Federation,
    Training,
    defend,
    fedavg,
    make_app,
    make_context,
    secure,
    start,
    to_bytes,
    train,
    train_twin,
)

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.core import derive
from cosdefense.filters import CosDefense, NormLimit
from cosdefense.flower import AllRoundsSkipped, Defended, HelperLost
from cosdefense.flower.node_ids import to_signed
from cosdefense.flower.secure_record import KEY
from cosdefense.runs.records import read_run
from cosdefense.secure import HelperUnreachable, Secure
from cosdefense.secure.encoding import Encoded, Floats, shorten
from cosdefense.secure.exchange import Checks, Reports, Settled, TicketRequest
from cosdefense.secure.helper import Helper
from cosdefense.secure.policy import Policy
from cosdefense.secure.report import LimitExceeded, Report, write_report
from cosdefense.secure.terms import Terms
from cosdefense.secure.ticket import Ticket
from doubles import always

LIMITED = Defense((NormLimit(), CosDefense(threshold="mean+std")), Mean())


def malicious(message: Message, context: Context) -> Message:
    """The head moves along itself: the cosine is one."""
    arrays = to_arrays(message.content["arrays"])
    moved = trained(arrays, context.node_id, 1)
    moved["head.weight"] = (arrays["head.weight"] * 1.1).astype(np.float32)
    return reply(message, content(moved, {"num-examples": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("defense", [secure(), Secure(LIMITED, colluders=0.0)], ids=["clip", "norm limit"])
def test_the_leader_decides_and_computes_as_the_twin(defense: Secure, tmp_path: Path) -> None:
    federation = Federation(tmp_path, apps={NODES[2]: malicious, NODES[5]: malicious})
    federation.changes = {node: {"secure-norms": True} for node in NODES}
    defended, arrays = defend(federation, defense), model()
    twin, state = defense.plain, defense.init()
    layout = Layout.of(arrays)
    for number in (1, 2, 3):
        grid = federation.grid()
        messages = list(defended.configure_train(number, record(arrays), ConfigRecord(), grid))
        result, metrics = defended.aggregate_train(number, list(grid.send_and_receive(messages)))
        assert result is not None
        assert metrics is not None
        assert defended.record is not None
        params = layout.flatten(arrays)
        plain = {}
        for message in messages:
            node = message.metadata.dst_node_id
            bare = reply(message, RecordDict({k: v for k, v in message.content.items() if k != KEY}))
            answer = federation.apps.get(node, train)(bare, make_context(node))
            plain[node] = layout.flatten(to_arrays(answer.content["arrays"])) - params
        rows = torch.stack([plain[node] for node in defended.record.clients])
        clients = torch.tensor([to_signed(node) for node in defended.record.clients])
        cohort = Cohort.of(rows, params, layout, clients, seed=derive(3, "defense", number))
        verdict, state = twin(cohort, state)
        assert list(defended.record.weights) == verdict.weights.tolist()
        assert 0 < metrics["cosdefense-rejected-defense"] < 5  # type: ignore[operator]
        for name, scores in verdict.evidence.items():
            found = [np.nan if score is None else score for score in defended.record.scores[name]]
            assert found == pytest.approx(scores.tolist(), nan_ok=True)
        rejected = {n for n, weight in zip(defended.record.clients, defended.record.weights, strict=True) if not weight}
        assert {NODES[2], NODES[5]} <= rejected
        expected = layout.unflatten(params + verdict.update)
        arrays = to_arrays(result)
        for name, array in arrays.items():
            assert np.array_equal(array, expected[name].numpy() if name in expected else model()[name]), name
    assert len(federation.replies) == 3 * len(NODES)


def drag_head(arrays: Arrays, node: int, number: int) -> Arrays:
    """The head moves along itself: the cosine is one."""
    return {**trained(arrays, node, number), "head.weight": (arrays["head.weight"] * 1.1).astype(np.float32)}


def times(size: float) -> Training:
    return lambda arrays, node, number: trained(arrays, node, number, size)


HONEST_BUT_LONG, UNCLIPPED, LEAVING, DRAGGING = ALL_NODES[1], ALL_NODES[2], ALL_NODES[3], ALL_NODES[6]
TRAININGS: dict[int, Training] = {HONEST_BUT_LONG: times(1.0), UNCLIPPED: times(100.0), DRAGGING: drag_head}


@pytest.mark.slow
def test_long_updates_and_a_node_that_leaves_give_the_model_of_the_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight nodes: one clips a long update, one forges a report of a longer one, one leaves, one is malicious."""
    federation = Federation(tmp_path, nodes=ALL_NODES, apps={n: make_app(t) for n, t in TRAININGS.items()})
    lengths = []

    def clip_unless_forged(trainable: Floats, buffers: Floats, terms: Terms) -> tuple[Floats, Floats]:
        lengths.append(float(np.linalg.norm(trainable)))
        clipped = shorten(trainable, buffers, terms)
        return (trainable, clipped[1]) if lengths[-1] > 50 else clipped

    def write_or_forge(encoded: Encoded, theta: list[int], terms: Terms, ticket: Ticket, key: Any) -> Report:
        try:
            return write_report(encoded, theta, terms, ticket, key)
        except LimitExceeded:
            return write_forged(Example(terms, theta, [key], federation.helper, ticket), 0, encoded)

    monkeypatch.setattr("cosdefense.secure.model.shorten", clip_unless_forged)
    monkeypatch.setattr("cosdefense.flower.secure_client.write_report", write_or_forge)

    def behave(message: Message) -> Message | None:
        number = message.content.config_records["config"]["server-round"]
        return None if message.metadata.dst_node_id == LEAVING and number == 2 else federation.behave(message)

    defense = secure()
    defended = defend(federation, defense, deadline=1.0, checkpoint_dir=tmp_path / "run")
    result = defended.start(LocalGrid(behave, ALL_NODES), start(), num_rounds=2)
    *others, a, b, c, d = sorted(lengths)  # two rounds
    assert max(others) < defense.clip < a < b < 50 < c < d  # type: ignore[operator]
    present = [[node for node in ALL_NODES if node != UNCLIPPED] for _ in (1, 2)]
    present[1].remove(LEAVING)
    expected, accepted = train_twin(defense, present, TRAININGS)
    assert to_bytes(result.arrays) == expected
    for line, nodes, missing in zip(read_run(tmp_path / "run").rounds, accepted, ((), (LEAVING,)), strict=True):
        reasons = dict(zip(line.clients, line.reasons, strict=True))
        assert {node for node, reason in reasons.items() if reason is None} == set(nodes)
        assert HONEST_BUT_LONG in nodes
        assert DRAGGING not in nodes
        assert reasons[UNCLIPPED] == "unproven"
        assert [node for node, reason in reasons.items() if reason == "late"] == list(missing)


def test_no_reply_holds_an_update(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    defended = defend(federation)
    defended.start(federation.grid(), start(), num_rounds=1)
    sent = b"".join(a.data for m in federation.replies for r in m.content.array_records.values() for a in r.values())
    for node in NODES:
        moved, before = trained(model(), node), model()
        for name, array in moved.items():
            if array.dtype == np.float32:
                update = array - before[name]
                for hidden in (array, update, np.rint(update * 2.0**23).astype(np.int32)):
                    assert hidden.tobytes()[:8] not in sent, name
    for message in federation.replies:
        assert not message.content.metric_records
        assert not message.content.config_records
        assert [list(r) for r in message.content.array_records.values()] == [["report"]]


def corrupt(message: Message) -> Message:
    array = message.content.array_records["arrays"]["report"].numpy().copy()
    array[-1] ^= 1
    return reply_like(message, array)


def reply_like(message: Message, array: np.ndarray[Any, Any]) -> Message:
    body = RecordDict({"arrays": ArrayRecord({"report": Array(array)})})
    copy = reply(message, body, src_node_id=message.metadata.src_node_id)
    copy.metadata.__dict__["_reply_to_message_id"] = message.metadata.reply_to_message_id
    return copy


def replayed(first: list[Message]) -> Callable[[Message], Message]:
    """Every node answers with what it sent in the first round."""

    def answer(message: Message) -> Message:
        earlier = {m.metadata.src_node_id: m for m in first}[message.metadata.src_node_id]
        return reply_like(message, earlier.content.array_records["arrays"]["report"].numpy())

    return answer


def test_bad_reports_cost_their_client_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path, nodes=ALL_NODES)
    stranger = Federation(_folder(tmp_path, "other"))
    federation.changes = {
        NODES[0]: {"secure-key": str(tmp_path / "other" / f"{NODES[0]}.pem")},  # not in the roster
        NODES[1]: {"secure-helper": stranger.helper.public_key.hex()},  # another helper
        NODES[2]: {"secure-key": str(tmp_path / f"{NODES[3]}.pem")},  # the key of another node
    }

    federation.after = lambda m: corrupt(m) if m.metadata.src_node_id == NODES[4] else m
    defended = defend(federation)
    result = defended.start(federation.grid(), start(), num_rounds=1)
    assert defended.record is not None
    reasons = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
    assert reasons[NODES[0]] == "unknown"
    assert reasons[NODES[1]] == "error"
    assert sorted(str(reasons[node]) for node in NODES[2:4]) in (["None", "duplicate"], ["defense", "duplicate"])
    assert reasons[NODES[4]] == "unsigned"
    assert "not signed by this node's helper" in caplog.text
    assert result.arrays is not None
    assert to_bytes(result.arrays) != to_bytes(start())


def _folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def test_reports_of_an_earlier_round_do_not_count(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    defended = defend(federation)
    arrays = start()
    for number in (1, 2):
        grid = federation.grid()
        messages = list(defended.configure_train(number, arrays, ConfigRecord(), grid))
        result, metrics = defended.aggregate_train(number, list(grid.send_and_receive(messages)))
        if number == 1:
            assert result is not None
            arrays, federation.after = result, replayed(list(federation.replies))
    assert result is None
    assert metrics is not None
    assert metrics["cosdefense-rejected-unsigned"] == len(NODES)


class Failing:
    """A helper that fails at one step of some rounds, before it does anything or after."""

    def __init__(
        self, federation: Federation, step: str, when: str, rounds: set[int], error: BaseException | None = None
    ) -> None:
        self.federation, self.step, self.when, self.rounds = federation, step, when, rounds
        self.error = error or HelperUnreachable("killed")
        self.number, self.sums = 0, dict[int, bytes]()

    def _call(self, name: str, argument: Any) -> Any:
        fails = name == self.step and self.number in self.rounds
        if fails and self.when == "before":
            self.federation.restart()
            raise self.error
        answer = getattr(self.federation.helper, name)(argument)
        if name == "settle" and answer.words is not None:
            assert answer.number not in self.sums, "two sums for one ticket"
            self.sums[answer.number] = answer.words.tobytes()
        if fails:
            self.federation.restart()  # SIGKILL: all but the state file is gone
            raise self.error
        return answer

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        self.number += 1
        ticket: Ticket = self._call("issue_ticket", request)
        return ticket

    def check_reports(self, reports: Reports) -> Checks:
        checks: Checks = self._call("check_reports", reports)
        return checks

    def settle(self, leader: Checks) -> Settled:
        settled: Settled = self._call("settle", leader)
        return settled


STEPS = [(step, when) for step in ("issue_ticket", "check_reports", "settle") for when in ("before", "after")]


@pytest.mark.parametrize(
    ("step", "when", "defense"),
    [*((step, when, secure()) for step, when in STEPS), ("settle", "after", Secure(LIMITED, colluders=0.0))],
    ids=[*(f"{when} {step}" for step, when in STEPS), "after settle, norm limit"],
)
def test_a_helper_killed_at_any_step_costs_one_round(step: str, when: str, defense: Secure, tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.changes = {node: {"secure-norms": True} for node in NODES}
    helper = Failing(federation, step, when, {2})
    defended = defend(federation, defense, helper=helper)
    result = defended.start(federation.grid(), start(), num_rounds=3)
    skipped = {n: m["cosdefense-skipped"] for n, m in result.train_metrics_clientapp.items()}
    assert skipped == {1: 0, 2: 1, 3: 0}
    assert defended.record is not None
    assert defended.record.skipped is None
    asked = 2 if step == "issue_ticket" else 3
    assert len(federation.replies) == asked * len(NODES)  # without a ticket, nobody is asked


@pytest.mark.slow
def test_a_run_without_a_helper_ends_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    federation = Federation(_folder(tmp_path, "keys"))
    broken = Failing(federation, "issue_ticket", "before", set(range(2, 99)))
    options: dict[str, Any] = {"checkpoint_dir": tmp_path / "run"}
    with pytest.raises(HelperLost, match="5 rounds in a row"):
        defend(federation, helper=broken, **options).start(federation.grid(), start(), num_rounds=20)
    resumed = defend(federation, **options).start(federation.grid(), start(), num_rounds=7, resume=True)
    assert [m["cosdefense-skipped"] for m in resumed.train_metrics_clientapp.values()] == [0, 1, 1, 1, 1, 0, 0]


def test_a_run_whose_helper_never_answers_has_not_succeeded(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    broken = Failing(federation, "issue_ticket", "before", {1, 2})
    with pytest.raises(AllRoundsSkipped):
        defend(federation, helper=broken).start(federation.grid(), start(), num_rounds=2)
    assert federation.replies == []


class Killed(BaseException):
    """The leader's process ends."""


@pytest.mark.slow
@pytest.mark.parametrize("defense", [secure(), Secure(LIMITED, colluders=0.0)], ids=["clip", "norm limit"])
def test_a_leader_killed_after_the_settlement_repeats_the_round(defense: Secure, tmp_path: Path) -> None:
    """The helper is one round ahead then, with its memory of norms too. The model is that of a run without a crash."""
    models = []
    for crashes in (False, True):
        federation = Federation(_folder(tmp_path, str(crashes)))
        federation.changes = {node: {"secure-norms": True} for node in NODES}
        folder = tmp_path / f"run-{crashes}"
        if crashes:
            dying = Failing(federation, "settle", "after", {2}, Killed())
            with pytest.raises(Killed):
                defend(federation, defense, helper=dying, checkpoint_dir=folder).start(
                    federation.grid(), start(), num_rounds=3
                )
            assert federation.helper._state.settled == 2
        run = defend(federation, defense, checkpoint_dir=folder)
        result = run.start(federation.grid(), start(), num_rounds=3, resume=crashes)
        models.append(to_bytes(result.arrays))
        assert federation.helper._state.settled == (4 if crashes else 3)
    assert models[0] == models[1]


def test_servers_that_disagree_skip_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path)

    class Lying(Failing):
        def settle(self, leader: Checks) -> Settled:
            settled = super().settle(leader)
            return Settled(settled.number, settled.outcomes, settled.weights, "a lie")

    defended = defend(federation, helper=Lying(federation, "", "", set()))
    with pytest.raises(AllRoundsSkipped), caplog.at_level(logging.ERROR):
        defended.start(federation.grid(), start(), num_rounds=1)
    assert "one of them does not follow the protocol" in caplog.text


def fail(message: Message, context: Context) -> Message:
    raise ValueError("pixel 7 of patient 3 is bad")  # the text of an error may hold data


def test_too_few_reports_or_clients_skip_the_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.apps = dict.fromkeys(NODES[:2], fail)
    defended = defend(federation, quorum=5)
    with pytest.raises(AllRoundsSkipped):
        defended.start(federation.grid(), start(), num_rounds=1)
    assert defended.record is not None
    assert defended.record.skipped == "4 reports, the quorum is 5"
    assert all("pixel 7" not in str(m.error.reason) for m in federation.replies if m.has_error())
    assert federation.helper._state.settled == 0
    many = defend(federation, secure(smallest=9))
    many.start(federation.grid(), start(), num_rounds=1)
    assert many.record is not None
    assert many.record.skipped == "Secure opens sums of at least 9 clients, got 6 clients"


def test_a_helper_that_refuses_is_named(tmp_path: Path) -> None:
    federation = Federation(tmp_path, policy=Policy(smallest=4))
    defended = defend(federation)
    with pytest.raises(AllRoundsSkipped):
        defended.start(federation.grid(), start(), num_rounds=1)
    assert defended.record is not None
    assert defended.record.skipped == "the helper: smallest must be at least 4 here, got 3"


def test_a_strategy_that_tells_nodes_different_things_is_refused(tmp_path: Path) -> None:
    """If all but one train with a learning rate of zero, the sum is the update of that one."""

    class Unequal(FedAvg):
        def configure_train(self, *arguments: Any) -> Any:
            for message in super().configure_train(*arguments):
                content = RecordDict(dict(message.content))
                content["config"] = ConfigRecord({"lr": float(message.metadata.dst_node_id == NODES[0])})
                yield make_message(message.metadata, content=content)

    federation = Federation(tmp_path)
    wrapped = Unequal(fraction_evaluate=0.0, min_train_nodes=6, min_available_nodes=6)
    with pytest.raises(ValueError, match="the same configuration to every node"):
        Defended(wrapped, secure(), helper=federation.helper, run_config={}).start(
            federation.grid(), start(), num_rounds=1
        )


def test_what_defended_refuses(tmp_path: Path) -> None:
    helper = Federation(tmp_path).helper
    data, given = always(0.0, 0.0), {"helper": helper, "run_config": {}}
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        (fedavg(), secure(), {}, "sees every update, and Secure must not: pass helper"),
        (fedavg(), secure(), {"helper": helper}, "Secure needs run_config=context.run_config"),
        (fedavg(), secure().plain, given, "is for simulations"),
        (fedavg(), get("cosdefense"), {"helper": helper}, "are for secure aggregation"),
        (fedavg(), get("cosdefense"), {"run_config": {}}, "are for secure aggregation"),
        (fedavg(), secure(), {**given, "weigh_by_examples": True}, "weigh_by_examples"),
        (fedavg(), secure(), {**given, "trusted_data": data}, "trusted_data"),
        (QFedAvg(client_learning_rate=0.1), secure(), given, "computes with metrics"),
    ]
    for strategy, defense, options, needed in cases:
        with pytest.raises(ValueError, match=needed):
            Defended(strategy, defense, **options)
    assert isinstance(helper, Helper)
