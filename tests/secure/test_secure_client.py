"""`secure_mod`: a node sends a report for a ticket of its own helper, and for anything else nothing but an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

from federations import content, model, record, reply, to_arrays
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from secure_federations import NODES, RUN_CONFIG, Federation, defend, make_context, start, train

from cosdefense import Defense
from cosdefense.aggregators import Mean
from cosdefense.filters import CosDefense
from cosdefense.flower import secure_mod
from cosdefense.flower.secure_record import KEY, SecureRecord
from cosdefense.secure import Secure


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def ask(federation: Federation) -> Message:
    """A message that asks the first node for training, with a ticket."""
    grid = federation.grid()
    messages = list(defend(federation).configure_train(1, start(), ConfigRecord(), grid))
    list(grid.push_messages(messages))
    return messages[0]


def answer(
    federation: Federation, message: Message, body: RecordDict, run_config: dict[str, Any] = RUN_CONFIG, **config: Any
) -> Message:
    node = message.metadata.dst_node_id
    settings = {
        "secure-key": str(federation.folder / f"{node}.pem"),
        "secure-helper": federation.helper.public_key.hex(),
    }
    settings |= {name.replace("_", "-"): value for name, value in config.items()}
    app = ClientApp(mods=[secure_mod])
    app.train()(train)
    app.train("nothing")(train)
    app.evaluate()(train)
    app.query()(lambda message, context: reply(message, content(None, {"n": 1})))
    return app(make_message(message.metadata, content=body), make_context(node, settings, run_config))


def check_error(found: Message, needed: str) -> None:
    assert found.has_error()
    assert needed in str(found.error.reason)


def test_another_kind_of_training_needs_another_ticket(federation: Federation) -> None:
    message = ask(federation)
    message.metadata.__dict__["_message_type"] = "train.nothing"
    check_error(answer(federation, message, RecordDict(dict(message.content))), "another configuration")


def test_every_node_trains_with_the_same_configuration_of_the_run(federation: Federation) -> None:
    """Nodes get it from the SuperLink: it could tell all but one to train with a learning rate of zero."""
    message = ask(federation)
    for changes in ({"learning-rate": 0.0}, {"learning-rate": 1}, {"more": 1}):
        body, run_config = RecordDict(dict(message.content)), {**RUN_CONFIG, **changes}
        check_error(answer(federation, message, body, run_config=run_config), "another configuration")
    other_order = dict(reversed(RUN_CONFIG.items()))
    assert not answer(federation, message, RecordDict(dict(message.content)), run_config=other_order).has_error()


def test_every_node_is_in_the_same_group(federation: Federation) -> None:
    message = ask(federation)
    message.metadata.group_id = "marked"
    check_error(answer(federation, message, RecordDict(dict(message.content))), "another configuration")


def test_a_report_for_a_valid_ticket(federation: Federation) -> None:
    message = ask(federation)
    found = answer(federation, message, RecordDict(dict(message.content)))
    assert list(found.content) == ["arrays"]
    assert list(found.content.array_records["arrays"]) == ["report"]


def test_no_update_without_a_valid_ticket(federation: Federation, tmp_path: Path) -> None:
    message = ask(federation)
    good = dict(message.content)
    secure = SecureRecord.take(make_message(message.metadata, content=RecordDict(dict(good))))
    other = Federation(_folder(tmp_path, "other"))
    stranger = ask(other).content[KEY]

    def with_record(**changes: Any) -> dict[str, Any]:
        return good | {KEY: ConfigRecord({**message.content.config_records[KEY], **changes})}

    arrays = model()
    moved = arrays | {"body.weight": arrays["body.weight"] + np.float32(2**-20)}
    counted = arrays | {"norm.num_batches_tracked": np.array(8)}
    halved = {name: array.astype(np.float64) if name == "head.bias" else array for name, array in arrays.items()}
    terms = replace(secure.terms, smallest=4, quorum=4).to_json()
    cases: list[tuple[dict[str, Any], str]] = [
        ({name: r for name, r in good.items() if name != KEY}, "Malformed"),
        (good | {KEY: stranger}, "not signed by this node's helper"),
        (good | {"arrays": record(moved)}, "another model"),
        (good | {"arrays": record(counted)}, "another configuration"),  # a counter could mark the model of one node
        (good | {"arrays": record(halved)}, "another configuration"),
        (good | {"config": ConfigRecord({"server-round": 1, "lr": 0.0})}, "another configuration"),
        (good | {"more": ConfigRecord({"lr": 0.0})}, "another configuration"),
        (good | {"more": record(arrays)}, "ValueError"),
        (with_record(terms=terms), "other terms"),
        (with_record(terms="{}"), "RefusedTerms"),
        (with_record(layer="body.weight"), "another model"),
        (with_record(layer="none"), "UnknownLayer"),
        (with_record(ticket=b""), "Malformed"),
        (with_record(ticket="text"), "Malformed"),
    ]
    for body, needed in cases:
        check_error(answer(federation, message, RecordDict(body)), needed)


def test_no_control_character_reaches_the_log_of_a_node(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of an error may quote what the server sent."""

    def fail(message: Message, context: Context) -> Message:
        raise RuntimeError("\x1b[2J\r\nINFO: all is well")

    federation.apps = {NODES[0]: fail}
    grid = federation.grid()
    list(grid.send_and_receive(list(defend(federation).configure_train(1, start(), ConfigRecord(), grid))))
    assert "no report is sent" in caplog.text
    assert "\x1b" not in caplog.text
    assert "\nINFO: all is well" not in caplog.text


def _folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def test_a_node_decides_what_it_takes_part_in(federation: Federation) -> None:
    message = ask(federation)
    for config, needed in (
        ({"secure_smallest": 4}, "sums of 3 clients may be opened, and this node needs 4"),
        ({"secure_head": 19}, "the cosine of 18 coordinates would be opened, and this node needs 19"),
        ({"secure_head": 0}, "ValueError"),
        ({"secure_head": "16"}, "ValueError"),
        ({"secure_smallest": 2}, "ValueError"),
        ({"secure_smallest": True}, "ValueError"),
        ({"secure_norms": "yes"}, "ValueError"),
        ({"secure_helper": "00"}, "ValueError"),
        ({"secure_helper": "x"}, "ValueError"),
        ({"secure_key": 7}, "ValueError"),
        ({"secure_key": "nothing.pem"}, "BadSettings"),
    ):
        check_error(answer(federation, message, RecordDict(dict(message.content)), **config), needed)


def test_a_head_of_few_coordinates_is_refused(federation: Federation) -> None:
    """The server names the tensor whose cosine is opened. That of three numbers says nearly all about them."""
    defense = Secure(Defense((CosDefense("head.bias"),), Mean()), colluders=0.0)
    arrays = model() | {"head.bias": np.ones(3, np.float32)}
    defended = defend(federation, defense)
    message = next(iter(defended.configure_train(1, record(arrays), ConfigRecord(), federation.grid())))
    check_error(answer(federation, message, RecordDict(dict(message.content))), "the cosine of 3 coordinates")
    assert not answer(federation, message, RecordDict(dict(message.content)), secure_head=3).has_error()


def test_norms_are_opened_only_if_the_node_agrees(federation: Federation) -> None:
    from test_secure_flower import LIMITED

    defended = defend(federation, Secure(LIMITED, colluders=0.0))
    message = next(iter(defended.configure_train(1, start(), ConfigRecord(), federation.grid())))
    check_error(answer(federation, message, RecordDict(dict(message.content))), "secure-norms is false")
    assert not answer(federation, message, RecordDict(dict(message.content)), secure_norms=True).has_error()


def test_other_replies_hold_no_arrays(federation: Federation) -> None:
    """Otherwise a server would ask for the trained model by another name."""
    message = ask(federation)
    for kind in ("evaluate", "query"):
        message.metadata.__dict__["_message_type"] = kind
        bare = RecordDict({name: r for name, r in message.content.items() if name != KEY})
        found = answer(federation, message, bare)
        if kind == "evaluate":  # this app answers it with a model
            check_error(found, "ValueError")
        else:
            assert dict(found.content.metric_records["metrics"]) == {"n": 1}


@pytest.mark.parametrize("broken", [{"head.bias": None}, {"head.bias": np.zeros(4)}, {"body.weight": np.nan}])
def test_a_model_that_cannot_be_reported_stays_at_the_node(federation: Federation, broken: dict[str, Any]) -> None:
    def spoil(message: Message, context: Context) -> Message:
        arrays: dict[str, Any] = to_arrays(message.content["arrays"])
        for name, value in broken.items():
            arrays[name] = arrays[name] * value if isinstance(value, float) else value
        return reply(message, content({k: v for k, v in arrays.items() if v is not None}, {"num-examples": 1}))

    federation.apps = {NODES[0]: spoil}
    grid = federation.grid()
    defended = defend(federation)
    messages = list(defended.configure_train(1, start(), ConfigRecord(), grid))
    model_after, metrics = defended.aggregate_train(1, list(grid.send_and_receive(messages)))
    assert model_after is not None
    assert metrics is not None
    assert metrics["cosdefense-rejected-error"] == 1
