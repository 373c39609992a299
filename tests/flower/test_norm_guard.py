"""The norm guard: far too long updates are rejected before any filter runs, and no growth locks honest nodes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from federations import NODES, LocalGrid, honest, model, record, reply, send_round, to_arrays, trained
from flwr.app import Message
from malformed import honest_body
from strategies import STRATEGIES

from cosdefense import Defense, Filter, TrustedData
from cosdefense.catalog.registry import PRESETS
from cosdefense.filters import Clip, FoolsGold
from cosdefense.flower import Defended, Reason
from cosdefense.flower.arrays import NDArray
from cosdefense.flower.norm_guard import MAX_GROWTH, MAX_RATIO, NormGuard
from cosdefense.flower.reply_checks import CheckedReplies, ValidReply
from cosdefense.flower.sent_model import SentModel

ACCEPT_ALL = Clip(1e30)
WEIGHTS = ("body.weight", "head.weight", "head.bias")
MODEL = SentModel.of({"head.weight": np.full((2, 2), 0.5, np.float32)})  # of norm 1
MESSAGE = send_round(STRATEGIES["FedAvg"](), model())[0]
# A server runs no hooks. A preset with one filter can also be used as that filter.
DEFENSES: dict[str, Defense | Filter] = {name: make() for name, make in PRESETS.items() if not make().hooks}
DEFENSES |= {f"{name}, filter": make().filters[0] for name, make in PRESETS.items() if len(make().filters) == 1}


def scaled(start: dict[str, NDArray], moved: dict[str, NDArray], factor: float) -> dict[str, NDArray]:
    """An update of which only the weights are multiplied."""
    changes = {
        name: (start[name] + np.float32(factor) * (moved[name] - start[name])).astype(np.float32) for name in WEIGHTS
    }
    return {**moved, **changes}


def get_step(start: dict[str, NDArray], arrays: Any) -> float:
    new = to_arrays(arrays)
    return float(np.linalg.norm(np.concatenate([(new[name] - start[name]).ravel() for name in WEIGHTS])))


class Guides(TrustedData):
    """What defenses with server data need: the server's update is that of an honest node."""

    def __init__(self, start: dict[str, NDArray]) -> None:
        self.layout = SentModel.of(start).layout
        self.own = self.layout.flatten(trained(start, 5)) - self.layout.flatten(start)

    def update(self, params: Any, seed: int) -> Any:
        return self.own

    def predict(self, params: Any) -> Any:
        weights = self.layout.unflatten(params)["head.weight"]
        return weights.reshape(6, 3), torch.arange(6) % 3

    def predict_random(self, params: Any, updates: Any, n: int, seed: int) -> Any:
        models = [self.layout.unflatten(params + update)["head.weight"] for update in (0, *updates)]
        images = torch.rand(n, models[0].shape[1], generator=torch.Generator().manual_seed(seed))
        return torch.stack([images @ weights.T for weights in models])

    def guides(self, clients: Any, params: Any, seed: int) -> Any:
        return self.own.expand(len(clients), -1)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    ("name", "strategy"), [(name, ("FedAvg", "FedAdam")[number % 2]) for number, name in enumerate(DEFENSES)]
)
def test_an_update_of_1e30_is_rejected_and_named(name: str, strategy: str) -> None:
    """One of eight nodes: the model moves as it does with the others, in every round, and the node is named."""
    start = model()
    trusted = Guides(start)
    wild, alone = (Defended(STRATEGIES[strategy](), DEFENSES[name], seed=1, trusted_data=trusted) for _ in range(2))
    for number in (1, 2):
        messages = send_round(wild, start, server_round=number)
        models = [trained(start, message.metadata.dst_node_id, number) for message in messages]
        models[3] = scaled(start, models[3], 1e30)
        replies = [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]
        arrays, metrics = wild.aggregate_train(number, replies)
        assert wild.record is not None
        reasons = dict(zip(wild.record.clients, wild.record.reasons, strict=True))
        assert reasons[messages[3].metadata.dst_node_id] == Reason.NORM
        assert metrics is not None
        assert metrics["cosdefense-rejected-norm"] == 1
        others = send_round(alone, start, server_round=number)
        replies = [reply(m, honest_body(a)) for k, (m, a) in enumerate(zip(others, models, strict=True)) if k != 3]
        expected, _ = alone.aggregate_train(number, replies)
        assert (arrays is None) == (expected is None)
        if arrays is not None and expected is not None:
            assert [array.data for array in arrays.values()] == [array.data for array in expected.values()]
            assert get_step(start, arrays) < 100  # some defenses add noise or shorten the model


def test_the_guard_can_be_switched_off() -> None:
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), FoolsGold(), max_norm_ratio=None)
    messages = send_round(defended, start)
    models = [trained(start, message.metadata.dst_node_id) for message in messages]
    models[3] = scaled(start, models[3], 1e6)
    replies = [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert get_step(start, arrays) > 1000
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="max_norm_ratio must be at least 1 and finite, or None"):
            Defended(STRATEGIES["FedAvg"](), FoolsGold(), max_norm_ratio=wrong)


def judge(guard: NormGuard, norms: list[float]) -> list[float]:
    """Which norms the guard accepts; it remembers these."""
    checked = CheckedReplies()
    checked.valid = [ValidReply(k, MESSAGE, {}, {}, {}, 1.0, "", norm) for k, norm in enumerate(norms)]
    guard.reject_long(checked, MODEL)
    kept = [reply.norm for reply in checked.valid]
    assert {rejection.node for rejection in checked.rejected} == {k for k, n in enumerate(norms) if n not in kept}
    guard.remember(kept)
    return kept


def test_the_first_round_is_compared_with_its_own_median() -> None:
    assert judge(NormGuard(100.0), [1.0, 2.0, 3.0, 299.0, 301.0]) == [1.0, 2.0, 3.0, 299.0]
    assert judge(NormGuard(100.0), [1.0, 1e30]) == [1.0]
    assert judge(NormGuard(100.0), [1e30]) == [1e30]  # there is nothing to compare it with


def test_later_rounds_are_compared_with_the_running_median() -> None:
    """Also if most updates of a round are short, or most of them are wild."""
    guard = NormGuard(100.0)
    judge(guard, [1.0] * 5)
    assert judge(guard, [1e-9, 1e-9, 1e-9, 50.0]) == [1e-9, 1e-9, 1e-9, 50.0]
    assert judge(guard, [1.0, 1e30, 1e30]) == [1.0]
    assert judge(guard, [1.0, 1.0, 1e30]) == [1.0, 1.0]


def test_rejected_updates_do_not_enter_the_running_median() -> None:
    one, other = NormGuard(100.0), NormGuard(100.0)
    for _ in range(20):
        judge(one, [1.0, 2.0, 3.0, 1e20])
        judge(other, [1.0, 2.0, 3.0])
        assert one.median == other.median


@pytest.mark.parametrize("growth", [10.0, 1e3, 1e6, 1e30])
def test_a_federation_whose_updates_grow_is_not_locked_out(growth: float) -> None:
    """For example after a change of the learning rate. Tenfold and thousandfold are accepted at once."""
    guard, norms = NormGuard(MAX_RATIO), [0.8, 1.0, 1.2, 1.5]
    for _ in range(10):
        judge(guard, norms)
    grown = [growth * norm for norm in norms]
    n_rounds = next(number for number in range(60) if judge(guard, grown) == grown)
    assert n_rounds <= max(0, np.ceil(np.log10(growth / (MAX_RATIO * MAX_GROWTH)) + 1))
    assert judge(guard, grown) == grown


def test_a_federation_whose_updates_shrink_follows() -> None:
    guard = NormGuard(100.0)
    judge(guard, [1.0] * 4)
    for _ in range(100):
        assert len(judge(guard, [1e-4] * 4)) == 4
    assert judge(guard, [1e-4, 1e-4, 1e-4, 1.0]) == [1e-4] * 3


def test_updates_of_length_zero() -> None:
    """From everybody they carry no information. A first long one is then compared with the model, whose norm is 1."""
    guard = NormGuard(100.0)
    assert judge(guard, [0.0] * 4) == [0.0] * 4
    assert guard.median is None
    assert judge(guard, [0.0, 0.0, 0.0, 99.0]) == [0.0, 0.0, 0.0, 99.0]
    assert judge(guard, [0.0, 0.0, 0.0, 101.0]) == [0.0] * 3
    assert judge(guard, [0.0, 1.0, 1.0]) == [0.0, 1.0, 1.0]
    assert guard.median == 1.0


def test_the_smallest_and_the_largest_numbers() -> None:
    assert judge(NormGuard(100.0), [1e-45] * 3 + [1e-40]) == [1e-45] * 3
    assert judge(NormGuard(100.0), [1e308, 1e308, float("inf")]) == [1e308, 1e308]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("value", [1e38, 1e-45])
def test_one_extreme_number_in_an_update(value: float) -> None:
    """The square of 1e38 overflows in float32, that of 1e-45 is zero."""
    start = {"head.weight": np.zeros((4, 5), np.float32)}
    defended = Defended(STRATEGIES["FedAvg"](), FoolsGold(), seed=1)
    messages = send_round(defended, start)
    rng = np.random.default_rng(0)
    models = [{"head.weight": rng.normal(size=(4, 5)).astype(np.float32)} for _ in messages]
    models[2]["head.weight"][1, 1] = value
    replies = [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert defended.record is not None
    reasons = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
    assert reasons[messages[2].metadata.dst_node_id] == (Reason.NORM if value > 1 else None)
    assert np.abs(to_arrays(arrays)["head.weight"]).max() < 3


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if "DP" not in name])
def test_nodes_that_do_not_move_keep_the_model(strategy: str) -> None:
    start = model()
    defended = Defended(STRATEGIES[strategy](), ACCEPT_ALL, seed=1)
    messages = send_round(defended, start)
    arrays, _ = defended.aggregate_train(1, [reply(m, honest_body(start)) for m in messages])
    assert arrays is not None
    assert get_step(start, arrays) < 1e-4


@pytest.mark.parametrize("strategy", ["DP, fixed", "DP, adaptive"])
@pytest.mark.parametrize("size", [0.0, 1e-30], ids=["zero", "tiny"])
def test_a_node_that_does_not_move_cannot_end_the_rounds_of_dp(strategy: str, size: float) -> None:
    """Flower divides by the norm of every update, in float32."""
    start = {"head.weight": np.zeros((4, 5), np.float32)}
    defended = Defended(STRATEGIES[strategy](), ACCEPT_ALL, seed=1)
    messages = send_round(defended, start)
    replies = [reply(m, honest_body(trained(start, m.metadata.dst_node_id))) for m in messages]
    replies[3] = reply(messages[3], honest_body({"head.weight": np.full((4, 5), size, np.float32)}))
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert defended.record is not None
    reasons = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
    assert [node for node, reason in reasons.items() if reason == Reason.NORM] == [messages[3].metadata.dst_node_id]


def test_a_resumed_run_remembers_the_running_median(tmp_path: Any) -> None:
    """Round 3 has a majority of wild updates: only a guard with a memory rejects them."""

    def behave(message: Message) -> Message:
        answer = honest(message)
        if message.metadata.message_type == "evaluate" or message.metadata.dst_node_id not in NODES[:5]:
            return answer
        if int(message.content.config_records["config"]["server-round"]) != 3:  # type: ignore[arg-type]
            return answer
        old, new = to_arrays(message.content["arrays"]), to_arrays(answer.content["arrays"])
        return reply(message, honest_body(scaled(old, new, 1e20)))

    def run(folder: str, rounds: list[int]) -> tuple[bytes, float | None]:
        for n in rounds:
            defended = Defended(STRATEGIES["FedAvg"](), FoolsGold(), seed=1, checkpoint_dir=tmp_path / folder)
            result = defended.start(LocalGrid(behave), record(model()), num_rounds=n, resume=True)
        assert get_step(model(), result.arrays) < 1
        return b"".join(array.data for array in result.arrays.values()), defended.norm_guard.median

    assert run("whole", [4]) == run("resumed", [1, 2, 3, 4])
