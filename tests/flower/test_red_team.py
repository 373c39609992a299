"""A node that lies on purpose: what it sends, what it leaves alone, from when on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federations import arrays_of, content, model, record, reply, trained
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
from cosdefense.flower import red_team
from cosdefense.flower.arrays import NDArray

NODE = 2**63 + 5


def asking(server_round: int | None = 1, kind: str = "train", arrays: dict[str, NDArray] | None = None) -> Message:
    """A message as it arrives at the node."""
    known = {} if server_round is None else {"server-round": server_round}
    body = RecordDict({"arrays": record(arrays or model()), "config": ConfigRecord({**known})})
    about = Metadata(
        run_id=1, message_id="7", src_node_id=1, dst_node_id=NODE, reply_to_message_id="", group_id="",
        created_at=0.0, ttl=60.0, message_type=kind,
    )  # fmt: skip
    return make_message(about, content=body)


def context() -> Context:
    return Context(1, NODE, {}, RecordDict(), {})


def honest(message: Message, _: Context) -> Message:
    start = arrays_of(message.content["arrays"])
    return reply(message, content(trained(start, NODE), {"loss": 1.0, "num-examples": 10}))


def moved(sent: Message, start: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name: array - start[name] for name, array in arrays_of(sent.content["arrays"]).items()}


@pytest.mark.parametrize(
    ("attack", "factor"),
    [
        (Attack(), 1.0),
        (SignFlip(2.0), -2.0),
        (SignFlip(2.0, every_step=True), -2.0),  # ascending is descending turned round
        (InnerProduct(5.0), -5.0),  # of the node's own update
        (ExplicitBoosting(), -1.0),
        (Backdoor(scale=3.0), 3.0),
    ],
)
def test_the_update_is_forged_and_the_rest_is_left(attack: Attack, factor: float) -> None:
    start = model()
    expected = {name: array - start[name] for name, array in trained(start, NODE).items()}
    sent = red_team(attack)(asking(), context(), honest)
    assert list(sent.content["arrays"]) == list(start)
    for name, step in moved(sent, start).items():
        whole = not np.issubdtype(start[name].dtype, np.floating)
        assert np.allclose(step, expected[name] if whole else factor * expected[name], atol=1e-5), name
        assert arrays_of(sent.content["arrays"])[name].dtype == start[name].dtype
    assert dict(sent.content.metric_records["metrics"]) == {"loss": 1.0, "num-examples": 10}


@pytest.mark.parametrize("attack", [Noise(1.0), TrimmedMeanPoisoning(), KrumPoisoning(), LabelFlip()])
def test_every_other_attack_sends_something_proper(attack: Attack) -> None:
    for array in arrays_of(red_team(attack)(asking(), context(), honest).content["arrays"]).values():
        assert np.isfinite(array).all()


def test_types_are_kept() -> None:
    start: dict[str, NDArray]
    start = {"head.weight": np.ones((2, 3), dtype=np.float16), "scale": np.ones(2), "count": np.array([2], np.int32)}
    sent = arrays_of(red_team(SignFlip())(asking(arrays=start), context(), honest).content["arrays"])
    assert {name: array.dtype for name, array in sent.items()} == {name: array.dtype for name, array in start.items()}
    assert sent["count"] == [3]


def test_noise_differs_by_round_and_not_by_process() -> None:
    first, again, later = (
        arrays_of(red_team(Noise())(asking(number), context(), honest).content["arrays"])["head.weight"]
        for number in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, later)


def test_it_waits_for_its_round() -> None:
    drill, start = red_team(SignFlip(3.0), from_round=3), model()
    honestly = moved(honest(asking(), context()), start)["head.weight"]
    assert np.array_equal(moved(drill(asking(2), context(), honest), start)["head.weight"], honestly)
    assert np.allclose(moved(drill(asking(3), context(), honest), start)["head.weight"], -3 * honestly, atol=1e-6)
    with pytest.raises(ValueError, match="server-round"):
        drill(asking(None), context(), honest)
    with pytest.raises(ValueError, match="from_round must be at least 1, got 0"):
        red_team(SignFlip(), from_round=0)


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.train"])
def test_it_lies_about_training_only(kind: str) -> None:
    sent = red_team(SignFlip())(asking(kind=kind), context(), honest)
    assert arrays_of(sent.content["arrays"])["head.bias"].tolist() == trained(model(), NODE)["head.bias"].tolist()


def test_a_failure_stays_a_failure() -> None:
    def fails(message: Message, _: Context) -> Message:
        return reply(message, error=Error(0, "no data"))

    assert red_team(SignFlip())(asking(), context(), fails).error.reason == "no data"


def test_several_records_are_refused() -> None:
    message = asking()
    message.content["control-variates"] = record(model())
    with pytest.raises(ValueError, match="exactly one record of arrays in the message, got 2"):
        red_team(SignFlip())(message, context(), honest)


@dataclass(frozen=True)
class Growing(Attack):
    """Remembers how often it lied, in a number and in a tensor."""

    def init(self) -> State:
        return {"times": 0, "total": torch.zeros(1)}

    def forge(self, cohort: Cohort, malicious: Bool[Tensor, " n"], state: State) -> tuple[Float[Tensor, "n d"], State]:
        state = {"times": state["times"] + 1, "total": state["total"] + 1}
        assert state["times"] == float(state["total"])
        return cohort.updates * state["times"], state


def test_what_the_attack_remembers_lasts_in_the_nodes_state() -> None:
    where, start = context(), model()
    steps = [moved(red_team(Growing())(asking(), where, honest), start)["head.bias"] for _ in range(3)]
    assert np.allclose(steps[2], 3 * steps[0], atol=1e-6)
    assert np.allclose(steps[1], 2 * steps[0], atol=1e-6)
    nothing = context()
    red_team(SignFlip())(asking(), nothing, honest)
    assert not nothing.state


def test_batches_are_poisoned_in_the_clients_own_loop() -> None:
    drill = red_team(LabelFlip(), from_round=2)
    images, labels = torch.rand(2, 4, 1, 8, 8), torch.arange(8).view(2, 4)
    assert torch.equal(drill.poisoned(asking(1), images, labels, 10)[1], labels)
    assert torch.equal(drill.poisoned(asking(2), images, labels, 10)[1], 9 - labels)
    stamped, named = red_team(Backdoor(target=3)).poisoned(asking(), images, labels, 10)
    assert bool((stamped[:, 0, :, -3:, -3:] == 1).all())
    assert named[:, 0].tolist() == [3, 3]


def test_it_is_a_mod_of_a_client_app() -> None:
    app = ClientApp(mods=[red_team(SignFlip())])
    register: Callable[..., object] = app.train()
    register(honest)
    sent = app(asking(), context())
    honestly = moved(honest(asking(), context()), model())["head.weight"]
    assert np.allclose(moved(sent, model())["head.weight"], -honestly, atol=1e-6)
