"""What a wrapped strategy gets, gives back and remembers, when replies are well formed but wild."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from federations import arrays_of, asked, content, model, reply, trained
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam
from malformed import TARGET, honest_body
from strategies import NODES, STRATEGIES

from cosdefense import Cohort, Filter, Judgment, MissingTrustedData
from cosdefense.filters import Clip, FLTrust, FoolsGold
from cosdefense.flower import Defended
from cosdefense.flower.strategy_state import pack_strategy

EVERYBODY = Clip(1e9)


def replies_with(messages: list[Message], change: dict[int, dict[str, Any]]) -> list[Message]:
    """Honest replies; of some of them some arrays are replaced."""
    start = arrays_of(messages[0].content["arrays"])
    models = [{**trained(start, m.metadata.dst_node_id), **change.get(k, {})} for k, m in enumerate(messages)]
    return [reply(m, honest_body(arrays)) for m, arrays in zip(messages, models, strict=True)]


def memory_of(defended: Defended) -> Any:
    packed = pack_strategy(defended.strategy)
    return packed.attributes, [tensor.numpy().tobytes() for tensor in packed.tensors.values()]


@pytest.mark.filterwarnings("ignore:overflow")  # numpy's own, of what is undone then
def test_a_momentum_that_would_be_infinite_for_ever_is_undone() -> None:
    """FedAdam squares: one client at 1e30 would freeze the model for good, and no number in it would look wrong."""
    tried = Defended(FedAdam(**NODES), Clip(1e34), seed=1)
    messages = asked(tried, model())
    before = memory_of(tried)
    huge = np.full((3, 6), 1e30, np.float32)
    arrays, metrics = tried.aggregate_train(1, replies_with(messages, {3: {TARGET: huge}}))
    assert arrays is None
    assert metrics is not None
    assert metrics["cosdefense-skipped"] == 1
    assert tried.record is not None
    assert "FedAdam.v_t would not be finite" in str(tried.record.skipped)
    assert memory_of(tried) == before
    assert tried.aggregate_train(1, replies_with(messages, {}))[0] is not None


def test_what_a_strategy_inside_a_strategy_remembers_is_undone_too() -> None:
    class Failing(DifferentialPrivacyServerSideAdaptiveClipping):
        def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
            raise ArithmeticError("after FedAdam has moved")

    tried = Defended(Failing(FedAdam(**NODES), 0.1, 8), EVERYBODY, seed=1)
    messages = asked(tried, model())
    before = memory_of(tried)
    assert tried.aggregate_train(1, replies_with(messages, {}))[0] is None
    assert memory_of(tried) == before


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_variance_becomes_negative(strategy: str) -> None:
    """No filter looks at statistics, and no network survives a negative variance."""
    tried = Defended(STRATEGIES[strategy](), EVERYBODY, seed=1)
    wild = {k: {"norm.running_var": np.full(6, -1e3, np.float32)} for k in range(5)}
    arrays, _ = tried.aggregate_train(1, replies_with(asked(tried, model()), wild))
    assert arrays is not None
    assert (arrays_of(arrays)["norm.running_var"] >= 0).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_counters_stay_the_servers_own(strategy: str) -> None:
    tried = Defended(STRATEGIES[strategy](), EVERYBODY, seed=1)
    wild = {k: {"norm.num_batches_tracked": np.array(10**12)} for k in range(8)}
    arrays, _ = tried.aggregate_train(1, replies_with(asked(tried, model()), wild))
    assert arrays is not None
    counter = arrays_of(arrays)["norm.num_batches_tracked"]
    assert counter == 7
    assert counter.dtype == np.int64


@dataclass(frozen=True)
class Fragile(Filter):
    """A rule that meets numbers it did not expect."""

    def __call__(self, cohort: Cohort, state: Any) -> tuple[Judgment, Any]:
        raise ArithmeticError("did not converge")


def test_a_defense_that_fails_costs_the_round_not_the_run() -> None:
    tried = Defended(STRATEGIES["FedAvg"](), Fragile())
    arrays, _ = tried.aggregate_train(1, replies_with(asked(tried, model()), {}))
    assert arrays is None
    assert tried.record is not None
    assert "the defense failed: " in str(tried.record.skipped)
    assert "did not converge" in str(tried.record.skipped)


def test_a_defense_that_lacks_data_of_the_server_ends_the_run() -> None:
    """Which is the operator's to mend, and no client's doing."""
    tried = Defended(STRATEGIES["FedAvg"](), FLTrust())
    with pytest.raises(MissingTrustedData):
        tried.aggregate_train(1, replies_with(asked(tried, model()), {}))


def test_a_head_that_is_not_there_is_named_before_anybody_trains() -> None:
    with pytest.raises(ValueError, match="head must be one of"):
        asked(Defended(STRATEGIES["FedAvg"](), EVERYBODY, head="tail"), model())


def test_rewritten_rows_reach_the_strategy() -> None:
    start = model()
    tried = Defended(STRATEGIES["FedAvg"](), Clip(0.01))
    messages = asked(tried, start)
    arrays, _ = tried.aggregate_train(1, replies_with(messages, {0: {TARGET: np.full((3, 6), 50, np.float32)}}))
    assert arrays is not None
    names = ("body.weight", "head.weight", "head.bias")
    moved = np.concatenate([(arrays_of(arrays)[name] - start[name]).ravel() for name in names])
    assert 0 < np.linalg.norm(moved) <= 0.01 * 1.01


def test_weights_of_a_filter_reach_the_strategy() -> None:
    """Two that send the same are one to FoolsGold: FedAvg averages with its weights."""
    start = model()
    tried = Defended(STRATEGIES["FedAvg"](), FoolsGold())
    messages = asked(tried, start)
    rng = np.random.default_rng(4)
    models = [{k: (a + rng.normal(size=a.shape)).astype(a.dtype) for k, a in start.items()} for _ in range(8)]
    models[1] = models[0]
    replies = [reply(m, content(a, {"num-examples": 10})) for m, a in zip(messages, models, strict=True)]
    arrays, _ = tried.aggregate_train(1, replies)
    assert arrays is not None
    assert tried.record is not None
    weights = dict(zip(tried.record.clients, tried.record.weights, strict=True))
    shares = np.array([weights[m.metadata.dst_node_id] for m in messages])
    assert (shares[:2] == 0).all()
    assert shares[2:].sum() > 0
    wanted = np.tensordot(shares / shares.sum(), np.array([a[TARGET] for a in models]), axes=1)
    assert np.allclose(arrays_of(arrays)[TARGET], wanted, atol=1e-5)


def test_a_strategy_that_returns_no_model_skips_the_round() -> None:
    class Shy(FedAdam):
        def aggregate_train(self, server_round: int, replies: Any) -> tuple[ArrayRecord | None, None]:
            return None, None

    tried = Defended(Shy(**NODES), EVERYBODY)
    assert tried.aggregate_train(1, replies_with(asked(tried, model()), {}))[0] is None
    assert tried.record is not None
    assert tried.record.skipped == "Shy returned no model"


def test_replies_before_anybody_was_asked_are_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="needs configure_train"):
        Defended(STRATEGIES["FedAvg"](), EVERYBODY).aggregate_train(1, [])
