"""MaliciousClient: what it sends, what it leaves unchanged, and from which round on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federations import content, model, record, reply, to_arrays, trained
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp
from jaxtyping import Bool, Float
from torch import Tensor

from cosdefense import Cohort
from cosdefense.attacks import (
    Attack,
    Backdoor,
    ExplicitBoosting,
    InnerProduct,
    KrumPoisoning,
    LabelFlip,
    Noise,
    SignFlip,
    TrimmedMeanPoisoning,
)
from cosdefense.core import State
from cosdefense.flower import MaliciousClient
from cosdefense.flower.arrays import NDArray

NODE = 2**63 + 5


def make_message_to_node(
    server_round: int | None = 1, kind: str = "train", arrays: dict[str, NDArray] | None = None
) -> Message:
    """A message as the node receives it."""
    config = {} if server_round is None else {"server-round": server_round}
    body = RecordDict({"arrays": record(arrays or model()), "config": ConfigRecord({**config})})
    metadata = Metadata(
        run_id=1, message_id="7", src_node_id=1, dst_node_id=NODE, reply_to_message_id="", group_id="",
        created_at=0.0, ttl=60.0, message_type=kind,
    )  # fmt: skip
    return make_message(metadata, content=body)


def context() -> Context:
    return Context(1, NODE, {}, RecordDict(), {})


def honest(message: Message, _: Context) -> Message:
    start = to_arrays(message.content["arrays"])
    return reply(message, content(trained(start, NODE), {"loss": 1.0, "num-examples": 10}))


def get_update(sent: Message, start: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name: array - start[name] for name, array in to_arrays(sent.content["arrays"]).items()}


@pytest.mark.parametrize(
    ("attack", "factor"),
    [
        (Attack(), 1.0),
        (SignFlip(2.0), -2.0),
        (SignFlip(2.0, every_step=True), -2.0),  # ascent is descent negated
        (InnerProduct(5.0), -5.0),  # of the node's own update
        (ExplicitBoosting(), -1.0),
        (Backdoor(scale=3.0), 3.0),
    ],
)
def test_the_update_is_forged_and_the_rest_is_unchanged(attack: Attack, factor: float) -> None:
    start = model()
    expected = {name: array - start[name] for name, array in trained(start, NODE).items()}
    sent = MaliciousClient(attack)(make_message_to_node(), context(), honest)
    assert list(sent.content["arrays"]) == list(start)
    for name, step in get_update(sent, start).items():
        whole = not np.issubdtype(start[name].dtype, np.floating)
        assert np.allclose(step, expected[name] if whole else factor * expected[name], atol=1e-5), name
        assert to_arrays(sent.content["arrays"])[name].dtype == start[name].dtype
    assert dict(sent.content.metric_records["metrics"]) == {"loss": 1.0, "num-examples": 10}


@pytest.mark.parametrize("attack", [Noise(1.0), TrimmedMeanPoisoning(), KrumPoisoning(), LabelFlip()])
def test_other_attacks_send_finite_numbers(attack: Attack) -> None:
    for array in to_arrays(
        MaliciousClient(attack)(make_message_to_node(), context(), honest).content["arrays"]
    ).values():
        assert np.isfinite(array).all()


def test_dtypes_are_kept() -> None:
    start: dict[str, NDArray]
    start = {"head.weight": np.ones((2, 3), dtype=np.float16), "scale": np.ones(2), "count": np.array([2], np.int32)}
    sent = to_arrays(
        MaliciousClient(SignFlip())(make_message_to_node(arrays=start), context(), honest).content["arrays"]
    )
    assert {name: array.dtype for name, array in sent.items()} == {name: array.dtype for name, array in start.items()}
    assert sent["count"] == [3]


def test_noise_differs_between_rounds_and_not_between_processes() -> None:
    first, again, later = (
        to_arrays(MaliciousClient(Noise())(make_message_to_node(number), context(), honest).content["arrays"])[
            "head.weight"
        ]
        for number in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, later)


def test_it_is_honest_before_its_first_round() -> None:
    attacker, start = MaliciousClient(SignFlip(3.0), from_round=3), model()
    expected = get_update(honest(make_message_to_node(), context()), start)["head.weight"]
    assert np.array_equal(
        get_update(attacker(make_message_to_node(2), context(), honest), start)["head.weight"], expected
    )
    assert np.allclose(
        get_update(attacker(make_message_to_node(3), context(), honest), start)["head.weight"], -3 * expected, atol=1e-6
    )
    with pytest.raises(ValueError, match="server-round"):
        attacker(make_message_to_node(None), context(), honest)
    with pytest.raises(ValueError, match="from_round must be at least 1, got 0"):
        MaliciousClient(SignFlip(), from_round=0)


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.train"])
def test_only_training_replies_are_forged(kind: str) -> None:
    sent = MaliciousClient(SignFlip())(make_message_to_node(kind=kind), context(), honest)
    assert to_arrays(sent.content["arrays"])["head.bias"].tolist() == trained(model(), NODE)["head.bias"].tolist()


def test_an_error_is_passed_on() -> None:
    def fails(message: Message, _: Context) -> Message:
        return reply(message, error=Error(0, "no data"))

    assert MaliciousClient(SignFlip())(make_message_to_node(), context(), fails).error.reason == "no data"


def test_several_records_are_refused() -> None:
    message = make_message_to_node()
    message.content["control-variates"] = record(model())
    with pytest.raises(ValueError, match="exactly one record of arrays in the message, got 2"):
        MaliciousClient(SignFlip())(message, context(), honest)


@dataclass(frozen=True)
class Growing(Attack):
    """Counts its rounds, in a number and in a tensor."""

    def init(self) -> State:
        return {"times": 0, "total": torch.zeros(1)}

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        state = {"times": state["times"] + 1, "total": state["total"] + 1}
        assert state["times"] == float(state["total"])
        return cohort.updates * state["times"], state


def test_the_state_of_the_attack_is_kept_in_the_context_of_the_node() -> None:
    node_context, start = context(), model()
    steps = [
        get_update(MaliciousClient(Growing())(make_message_to_node(), node_context, honest), start)["head.bias"]
        for _ in range(3)
    ]
    assert np.allclose(steps[2], 3 * steps[0], atol=1e-6)
    assert np.allclose(steps[1], 2 * steps[0], atol=1e-6)
    unused = context()
    MaliciousClient(SignFlip())(make_message_to_node(), unused, honest)
    assert not unused.state


def test_training_data_can_be_poisoned() -> None:
    attacker = MaliciousClient(LabelFlip(), from_round=2)
    images, labels = torch.rand(2, 4, 1, 8, 8), torch.arange(8).view(2, 4)
    assert torch.equal(attacker.poison(make_message_to_node(1), images, labels, 10)[1], labels)
    assert torch.equal(attacker.poison(make_message_to_node(2), images, labels, 10)[1], 9 - labels)
    stamped, targets = MaliciousClient(Backdoor(target=3)).poison(make_message_to_node(), images, labels, 10)
    assert bool((stamped[:, 0, :, -3:, -3:] == 1).all())
    assert targets[:, 0].tolist() == [3, 3]


def test_it_is_a_mod_of_a_client_app() -> None:
    app = ClientApp(mods=[MaliciousClient(SignFlip())])
    register: Callable[..., object] = app.train()
    register(honest)
    sent = app(make_message_to_node(), context())
    expected = get_update(honest(make_message_to_node(), context()), model())["head.weight"]
    assert np.allclose(get_update(sent, model())["head.weight"], -expected, atol=1e-6)
