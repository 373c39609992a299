"""What an operator reads in the log: the lines of Flower, every rejection with a name, and no control characters."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from certificates import make_node_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from federations import NODES, LocalGrid, content, honest, model, record, reply, to_arrays, trained
from flwr.app import Error, Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg
from strategies import NODES as EIGHT
from strategies import STRATEGIES

from cosdefense.filters import Clip, MultiKrum
from cosdefense.flower import AllRoundsSkipped, Defended, PullLimits
from cosdefense.flower.node_names import NodeNames
from cosdefense.runs.records import read_run
from cosdefense.runs.safe_text import printable

ACCEPT_ALL = Clip(1e9)
HOSTILE = "\x1b[2J\r\nINFO :      all is well\x07\x9b\u202e"  # clears a terminal, adds a line, writes backwards
SHORT = PullLimits(grace=0.1, poll_interval=0.01)


class Formatted(logging.Handler):
    """The text of every entry, as a terminal or a file gets it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        self.lines += self.format(entry).split("\n")


@pytest.fixture
def lines() -> Any:
    handler, logger = Formatted(), logging.getLogger("flwr")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def test_the_log_has_the_lines_of_flower(lines: list[str]) -> None:
    """All that `Strategy.start` logs, except times and sizes, is in the log of `Defended.start` too."""

    def evaluate(number: int, arrays: object) -> MetricRecord:
        return MetricRecord({"accuracy": 0.5})

    FedAvg(**EIGHT).start(LocalGrid(honest), record(model()), num_rounds=2, evaluate_fn=evaluate)
    flower = [line.strip() for line in lines if line.strip() and "finished in" not in line]
    lines.clear()
    Defended(FedAvg(**EIGHT), ACCEPT_ALL).start(LocalGrid(honest), record(model()), num_rounds=2, evaluate_fn=evaluate)
    ours = "\n".join(lines)
    others = ("Aggregated MetricRecord", "Starting", "'loss'", "0:", "1:", "2:")  # metrics have another form in ours
    missing = [line for line in flower if line not in ours and not any(text in line for text in others)]
    assert missing == []
    for text in ("Starting Defended", "Strategy execution finished in", "Final results:", "'cosdefense-accepted': 8"):
        assert text in ours
    for number in (1, 2):
        assert ours.count(f"\t\t{number}: {{") == 3  # train, evaluate, evaluate at the server
    assert ours.count("Aggregated MetricRecord: {") == 4


def test_rejections_name_node_reason_and_score(lines: list[str], tmp_path: Path) -> None:
    """The records hold the names too."""

    def behave(message: Message) -> Message:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "train" and node == NODES[0]:
            start = to_arrays(message.content["arrays"])
            return reply(message, content(trained(start, node, size=-0.9), {"loss": 1.0, "num-examples": 1}))
        return reply(message, error=Error(0, "no disk")) if node == NODES[1] else honest(message)

    names: dict[int | str, str] = {NODES[0]: "hospital A", str(NODES[1]): "hospital B"}
    defended = Defended(STRATEGIES["FedAvg"](), MultiKrum(), checkpoint_dir=tmp_path, node_names=names)
    defended.start(LocalGrid(behave), record(model()), num_rounds=1)
    text = "\n".join(lines)
    assert f"reply of hospital A (node {NODES[0]}) rejected (defense): scores: MultiKrum " in text
    assert f"reply of hospital B (node {NODES[1]}) rejected (error): the client failed: 'no disk'" in text
    (line,) = read_run(tmp_path).rounds
    assert {node: name for node, name in zip(line.clients, line.names, strict=True) if name} == {
        NODES[0]: "hospital A", NODES[1]: "hospital B",
    }  # fmt: skip


class KnownNodes(LocalGrid):
    """A SuperLink that knows a key and a registered name."""

    def __init__(self, key: bytes) -> None:
        super().__init__(honest)
        self.key = key

    def get_nodes(self) -> Any:
        yield NodeInfo(node_id=NODES[0], public_key=self.key, name="as registered")
        yield NodeInfo(node_id=NODES[1], name=f"clinic {HOSTILE}")
        yield NodeInfo(node_id=NODES[2])


@pytest.mark.parametrize("form", ["mapping", "toml", "json"])
def test_names_by_public_key_and_as_registered(form: str, tmp_path: Path) -> None:
    public = make_node_key(tmp_path / "node").with_suffix(".pub").read_text()
    pem = load_ssh_public_key(public.encode()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    given: Any = {public: "hospital A", str(NODES[3]): "hospital D"}
    if form != "mapping":
        table, given = given, tmp_path / f"names.{form}"
        lines = "".join(f"{json.dumps(key)} = {json.dumps(name)}\n" for key, name in table.items())
        given.write_text(lines if form == "toml" else json.dumps(table))
    names = NodeNames(given)
    names.look_up(KnownNodes(pem), NODES)
    assert names.label(NODES[0]) == f"hospital A (node {NODES[0]})"
    assert str(names.get(NODES[1])).startswith("clinic \N{REPLACEMENT CHARACTER}[2J")
    assert names.label(NODES[2]) == f"node {NODES[2]}"
    assert names.get(NODES[3]) == "hospital D"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({1: "a", 2: "a"}, "every node needs its own name"),
        ({1: "a\nb"}, "printable characters"),
        ({1: 5}, "printable characters"),
        ({"hospital": "a"}, r"needs a node id or the content of a node's \.pub file, got 'hospital'"),
    ],
)
def test_invalid_names_are_refused(names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Defended(FedAvg(), ACCEPT_ALL, node_names=names)


class Careless(FedAvg):
    """Its errors quote what clients wrote."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if server_round == 2:
            raise ValueError(f"cannot use {next(iter(replies)).content.metric_records} {HOSTILE}") from KeyError(
                HOSTILE
            )
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        raise RuntimeError(HOSTILE)


def test_no_control_character_of_a_client_reaches_the_log(lines: list[str]) -> None:
    """Names of metrics, errors of clients, errors of pulls, errors of strategies with their tracebacks."""

    def behave(message: Message) -> Message | Exception:
        node, start = message.metadata.dst_node_id, to_arrays(message.content["arrays"])
        if node == NODES[0]:
            return reply(message, error=Error(0, HOSTILE))
        if node == NODES[1]:
            return ValueError(HOSTILE)
        metrics = {"loss" if node != NODES[2] else HOSTILE: 1.0, "num-examples": 1}
        return reply(message, content(trained(start, node), metrics))

    defended = Defended(Careless(**EIGHT), ACCEPT_ALL, pull_limits=SHORT)
    defended.start(LocalGrid(behave), record(model()), num_rounds=2)
    text = "\n".join(lines)
    for expected in ("could not aggregate round 2", "ValueError: ", "led to this one", "KeyError", "Careless"):
        assert expected in text
    assert all(line.replace("\t", "").isprintable() for line in lines), [x for x in lines if not x.isprintable()]
    assert not any(line.startswith("INFO") for line in lines)


def test_text_is_made_printable() -> None:
    assert printable(HOSTILE).isprintable()
    assert len(printable(HOSTILE)) == len(HOSTILE)
    assert printable("é" * 300) == "é" * 199 + "…"


@pytest.mark.slow
def test_a_run_whose_every_round_was_skipped_fails(tmp_path: Path) -> None:
    """After the folder is complete: more rounds can be asked for."""

    def fail_before(number: int) -> Any:
        return lambda m: honest(m) if m.content.config_records["config"]["server-round"] >= number else ValueError("no")

    def start(number: int, rounds: int) -> Any:
        defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, checkpoint_dir=tmp_path, pull_limits=SHORT)
        return defended.start(LocalGrid(fail_before(number)), record(model()), num_rounds=rounds, resume=True)

    for _ in range(2):  # the second time nothing is left to do
        with pytest.raises(AllRoundsSkipped, match="all 2 rounds were skipped") as error:
            start(9, 2)
        assert set(error.value.result.train_metrics_clientapp) == {1, 2}
        assert read_run(tmp_path).summary is not None
    assert start(3, 3).train_metrics_clientapp[3]["cosdefense-skipped"] == 0


def test_a_run_without_training_does_not_fail() -> None:
    strategy = FedAvg(fraction_train=0.0, min_evaluate_nodes=8, min_available_nodes=8)
    result = Defended(strategy, ACCEPT_ALL).start(LocalGrid(honest), record(model()), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
