"""What a wrapped strategy gets, returns and keeps when replies are well formed but extreme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from federations import content, model, reply, send_round, to_arrays, trained
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam
from malformed import TARGET, honest_body
from strategies import NODES, STRATEGIES

from cosdefense import Cohort, Defense, Filter, Judgment, MissingTrustedData, UnknownLayer
from cosdefense.aggregators import Mean
from cosdefense.filters import Clip, CosDefense, FLTrust, FoolsGold
from cosdefense.flower import Defended, Reason
from cosdefense.flower.strategy_state import pack_strategy, restore_on_failure

ACCEPT_ALL = Clip(1e9)


def replies_with(messages: list[Message], change: dict[int, dict[str, Any]]) -> list[Message]:
    """Honest replies; `change` replaces arrays of some of them."""
    start = to_arrays(messages[0].content["arrays"])
    models = [{**trained(start, m.metadata.dst_node_id), **change.get(k, {})} for k, m in enumerate(messages)]
    return [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]


def pack_state(defended: Defended) -> Any:
    packed = pack_strategy(defended.strategy)
    return packed.attributes, [tensor.numpy().tobytes() for tensor in packed.tensors.values()]


HUGE = {TARGET: np.full((3, 6), 1e30, np.float32)}


@pytest.mark.filterwarnings("ignore:overflow")  # from numpy, in a result that is discarded
def test_a_momentum_that_would_be_infinite_is_restored() -> None:
    """FedAdam squares: two clients at 1e30 would freeze the model, although all its numbers stay finite."""
    defended = Defended(FedAdam(**NODES), Clip(1e34), seed=1, max_norm_ratio=None)
    messages = send_round(defended, model())
    before = pack_state(defended)
    arrays, metrics = defended.aggregate_train(1, replies_with(messages, {3: HUGE, 5: HUGE}))
    assert arrays is None
    assert metrics is not None
    assert metrics["cosdefense-skipped"] == 1
    assert defended.record is not None
    assert "FedAdam.v_t would not be finite" in str(defended.record.skipped)
    assert set(defended.record.reasons) == {None}
    assert pack_state(defended) == before
    assert defended.aggregate_train(1, replies_with(messages, {}))[0] is not None


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("strategy", ["FedAdam", "FedAdagrad", "FedYogi"])
def test_the_update_that_makes_a_result_infinite_is_dropped_and_named(strategy: str) -> None:
    """The others are aggregated again: the result equals that of a round without the node."""
    results = []
    for change in ({3: HUGE}, None):
        defended = Defended(STRATEGIES[strategy](), Clip(1e34), seed=1, max_norm_ratio=None)
        messages = send_round(defended, model())
        replies = replies_with(messages, change or {})
        arrays, metrics = defended.aggregate_train(1, replies if change else replies[:3] + replies[4:])
        assert arrays is not None
        assert metrics is not None
        assert defended.record is not None
        if change:
            reasons = dict(zip(defended.record.clients, defended.record.reasons, strict=True))
            assert reasons[messages[3].metadata.dst_node_id] == Reason.RESULT
            assert metrics["cosdefense-rejected-result"] == 1
        results.append(([array.data for array in arrays.values()], pack_state(defended)))
    assert results[0] == results[1]


def test_a_record_that_a_strategy_empties_is_restored() -> None:
    """QFedAvg empties its copy of the model while it aggregates."""
    strategy = STRATEGIES["QFedAvg"]()
    send_round(strategy, model())
    arrays: ArrayRecord = vars(strategy)["current_arrays"]
    with pytest.raises(KeyError), restore_on_failure(strategy):
        [arrays.pop(name) for name in (*model(), "none")]
    assert list(vars(strategy)["current_arrays"]) == list(model())


@dataclass(frozen=True)
class Cancelling(Filter):
    """Signed weights that nearly cancel: the weighted mean is far longer than all updates."""

    def __call__(self, cohort: Cohort, state: Any) -> tuple[Judgment, Any]:
        weights = torch.ones(len(cohort), dtype=cohort.weights.dtype)
        if len(cohort) == 8:
            longest = int(cohort.trainable().norm(dim=1).argmax())
            weights[longest] = -6.999
        return Judgment(torch.zeros(len(cohort)), weights), (state or 0) + 1


@pytest.mark.parametrize("whole", [True, False])
def test_a_step_far_beyond_all_updates_is_refused(whole: bool) -> None:
    defense = Defense((Cancelling(),), Mean())
    defended = Defended(STRATEGIES["FedAvg"](), defense if whole else Cancelling(), seed=1)
    start = model()
    arrays, _ = defended.aggregate_train(1, replies_with(send_round(defended, start), {}))
    assert arrays is not None
    assert np.abs(to_arrays(arrays)[TARGET] - start[TARGET]).max() < 0.1
    assert defended.record is not None
    assert list(defended.record.reasons).count(Reason.RESULT) == 1
    assert defended.state[0] == 1  # the defense has seen one round


def test_the_state_of_a_nested_strategy_is_restored_too() -> None:
    class Failing(DifferentialPrivacyServerSideAdaptiveClipping):
        def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
            raise ArithmeticError("after FedAdam has moved")

    defended = Defended(Failing(FedAdam(**NODES), 0.1, 8), ACCEPT_ALL, seed=1)
    messages = send_round(defended, model())
    before = pack_state(defended)
    assert defended.aggregate_train(1, replies_with(messages, {}))[0] is None
    assert pack_state(defended) == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_variance_becomes_negative(strategy: str) -> None:
    """Filters ignore buffers, and a negative variance makes all outputs NaN."""
    defended = Defended(STRATEGIES[strategy](), ACCEPT_ALL, seed=1)
    extreme = {k: {"norm.running_var": np.full(6, -1e3, np.float32)} for k in range(5)}
    arrays, _ = defended.aggregate_train(1, replies_with(send_round(defended, model()), extreme))
    assert arrays is not None
    assert (to_arrays(arrays)["norm.running_var"] >= 0).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_integer_arrays_keep_the_value_of_the_server(strategy: str) -> None:
    defended = Defended(STRATEGIES[strategy](), ACCEPT_ALL, seed=1)
    extreme = {k: {"norm.num_batches_tracked": np.array(10**12)} for k in range(8)}
    arrays, _ = defended.aggregate_train(1, replies_with(send_round(defended, model()), extreme))
    assert arrays is not None
    counter = to_arrays(arrays)["norm.num_batches_tracked"]
    assert counter == 7
    assert counter.dtype == np.int64


@dataclass(frozen=True)
class Failing(Filter):
    """A rule that fails on the numbers it gets."""

    def __call__(self, cohort: Cohort, state: Any) -> tuple[Judgment, Any]:
        raise ArithmeticError("did not converge")


def test_a_failing_defense_skips_the_round() -> None:
    defended = Defended(STRATEGIES["FedAvg"](), Failing())
    arrays, _ = defended.aggregate_train(1, replies_with(send_round(defended, model()), {}))
    assert arrays is None
    assert defended.record is not None
    assert "the defense failed: " in str(defended.record.skipped)
    assert "did not converge" in str(defended.record.skipped)


def test_a_defense_without_its_trusted_data_ends_the_run() -> None:
    """Only the operator can correct this, and no client can cause it."""
    defended = Defended(STRATEGIES["FedAvg"](), FLTrust())
    with pytest.raises(MissingTrustedData):
        defended.aggregate_train(1, replies_with(send_round(defended, model()), {}))


def test_a_defense_that_does_not_know_the_head_ends_the_run() -> None:
    """The classifier is registered first: which matrix it is must be said, and then the round works."""
    start = {"classifier.weight": np.ones((3, 4), np.float32), "body.weight": np.ones((4, 6), np.float32)}
    for head in (None, "classifier.weight"):
        defended = Defended(STRATEGIES["FedAvg"](), CosDefense(), head=head)
        messages = send_round(defended, start)
        replies = replies_with(messages, {})
        if head is None:
            with pytest.raises(UnknownLayer, match=r"pass head=.*'classifier.weight'"):
                defended.aggregate_train(1, replies)
        else:
            assert defended.aggregate_train(1, replies)[0] is not None


def test_an_unknown_head_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="head must be one of"):
        send_round(Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, head="tail"), model())


def test_updates_changed_by_a_filter_reach_the_strategy() -> None:
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), Clip(0.01), max_norm_ratio=None)
    messages = send_round(defended, start)
    arrays, _ = defended.aggregate_train(1, replies_with(messages, {0: {TARGET: np.full((3, 6), 50, np.float32)}}))
    assert arrays is not None
    names = ("body.weight", "head.weight", "head.bias")
    moved = np.concatenate([(to_arrays(arrays)[name] - start[name]).ravel() for name in names])
    assert 0 < np.linalg.norm(moved) <= 0.01 * 1.01


def test_the_weights_of_a_filter_reach_the_strategy() -> None:
    """FoolsGold gives two identical clients the weight zero; FedAvg averages with its weights."""
    start = model()
    defended = Defended(STRATEGIES["FedAvg"](), FoolsGold())
    messages = send_round(defended, start)
    rng = np.random.default_rng(4)
    models = [{k: (a + rng.normal(size=a.shape)).astype(a.dtype) for k, a in start.items()} for _ in range(8)]
    models[1] = models[0]
    replies = [reply(m, content(a, {"num-examples": 10})) for m, a in zip(messages, models, strict=True)]
    arrays, _ = defended.aggregate_train(1, replies)
    assert arrays is not None
    assert defended.record is not None
    weights = dict(zip(defended.record.clients, defended.record.weights, strict=True))
    shares = np.array([weights[m.metadata.dst_node_id] for m in messages])
    assert (shares[:2] == 0).all()
    assert shares[2:].sum() > 0
    wanted = np.tensordot(shares / shares.sum(), np.array([a[TARGET] for a in models]), axes=1)
    assert np.allclose(to_arrays(arrays)[TARGET], wanted, atol=1e-5)


def test_a_strategy_that_returns_no_model_skips_the_round() -> None:
    class Empty(FedAdam):
        def aggregate_train(self, server_round: int, replies: Any) -> tuple[ArrayRecord | None, None]:
            return None, None

    defended = Defended(Empty(**NODES), ACCEPT_ALL)
    assert defended.aggregate_train(1, replies_with(send_round(defended, model()), {}))[0] is None
    assert defended.record is not None
    assert defended.record.skipped == "Empty returned no model"


def test_aggregating_before_configuring_is_refused() -> None:
    with pytest.raises(RuntimeError, match="needs configure_train"):
        Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL).aggregate_train(1, [])
