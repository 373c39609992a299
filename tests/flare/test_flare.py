"""The adapters for NVIDIA FLARE: with its own objects, and in its simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # FLARE's imports warn

GLOBAL = {"hidden": np.zeros((3, 4), np.float32), "head": np.ones((2, 3), np.float32), "steps": np.array(7)}


def make_context(number: int = 0) -> Any:
    """As the workflows make it: the global model and the round are in it."""
    from nvflare.apis.fl_context import FLContextManager
    from nvflare.app_common.abstract.model import make_model_learnable
    from nvflare.app_common.app_constant import AppConstants

    context = FLContextManager(identity_name="server", job_id="job").new_context()
    context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(GLOBAL, {}), private=True, sticky=True)
    context.set_prop(AppConstants.CURRENT_ROUND, number, private=True, sticky=False)
    return context


def send(aggregator: Any, context: Any, name: str, arrays: dict[str, Any], kind: str = "WEIGHTS") -> bool:
    """A result as ScatterAndGather passes it on."""
    from nvflare.apis.dxo import DXO
    from nvflare.apis.fl_constant import ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    shareable = DXO(kind, data=arrays).to_shareable()
    peer = FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, name, private=False)
    assert isinstance(shareable, Shareable)
    shareable.set_peer_props(peer.get_all_public_props())
    accepted: bool = aggregator.accept(shareable, context)
    return accepted


def moved(by: float, **others: Any) -> dict[str, Any]:
    return {"hidden": GLOBAL["hidden"] + by, "head": GLOBAL["head"] + by, "steps": np.array(9), **others}


def test_public_names() -> None:
    import cosdefense.nvflare

    assert cosdefense.nvflare.__all__ == ["DefendedAggregator", "UpdateFilter"]


def test_whole_models_are_judged_and_combined() -> None:
    from nvflare.apis.dxo import from_shareable

    from cosdefense.nvflare import DefendedAggregator

    aggregator, context = DefendedAggregator("multi-krum", {"contamination": 0.17}), make_context()
    for site, by in enumerate((0.9, 1.0, 1.1, 1.0, 0.95, -40.0)):
        assert send(aggregator, context, f"site-{site}", moved(by))
    result = from_shareable(aggregator.aggregate(context))
    assert result.data_kind == "WEIGHTS"
    assert np.allclose(result.data["hidden"], np.mean([0.9, 1.0, 1.1, 1.0, 0.95]))
    assert np.allclose(result.data["head"], 1 + np.mean([0.9, 1.0, 1.1, 1.0, 0.95]))
    assert result.data["steps"] == 7
    assert result.data["head"].dtype == np.float32
    assert aggregator.verdict is not None
    assert aggregator.verdict.weights.tolist() == [1, 1, 1, 1, 1, 0]


def test_differences_give_a_difference() -> None:
    from nvflare.apis.dxo import from_shareable

    from cosdefense.nvflare import DefendedAggregator

    aggregator, context = DefendedAggregator("median"), make_context()
    for site, by in enumerate((1.0, 2.0, 50.0)):
        difference = {name: np.zeros_like(array) for name, array in GLOBAL.items()}
        difference["hidden"] += by
        assert send(aggregator, context, f"site-{site}", difference, "WEIGHT_DIFF")
    result = from_shareable(aggregator.aggregate(context))
    assert result.data_kind == "WEIGHT_DIFF"
    assert np.allclose(result.data["hidden"], 2.0)
    assert np.allclose(result.data["head"], 0.0)


@pytest.mark.parametrize(
    "arrays",
    [
        moved(1.0, head=np.ones((1, 3), np.float32)),
        moved(1.0, head=np.ones((2, 3), np.float64)),
        moved(1.0, head=np.array([["x"] * 3] * 2)),
        moved(1.0, head="zeros"),
        moved(1.0, more=np.ones(3, np.float32)),
        {"hidden": GLOBAL["hidden"]},
    ],
    ids=["shape", "dtype", "text", "no array", "another name", "a name is missing"],
)
def test_a_malformed_result_is_refused_and_ends_nothing(arrays: dict[str, Any]) -> None:
    from nvflare.apis.dxo import from_shareable

    from cosdefense.nvflare import DefendedAggregator

    aggregator, context = DefendedAggregator("median"), make_context()
    assert not send(aggregator, context, "bad", arrays)
    assert send(aggregator, context, "good", moved(1.0))
    assert not send(aggregator, context, "good", moved(9.0))  # once per round
    assert not send(aggregator, context, "", moved(9.0))
    assert np.allclose(from_shareable(aggregator.aggregate(context)).data["hidden"], 1.0)


def test_the_model_stays_where_nothing_can_be_combined() -> None:
    from nvflare.apis.dxo import from_shareable

    from cosdefense.nvflare import DefendedAggregator

    aggregator, context = DefendedAggregator("krum"), make_context()
    assert np.array_equal(from_shareable(aggregator.aggregate(context)).data["head"], GLOBAL["head"])  # nobody answered
    assert send(aggregator, context, "alone", moved(1.0))  # Krum needs more
    assert np.array_equal(from_shareable(aggregator.aggregate(context)).data["head"], GLOBAL["head"])
    for site in range(5):
        assert send(aggregator, context, f"site-{site}", moved(np.nan))
    assert np.array_equal(from_shareable(aggregator.aggregate(context)).data["head"], GLOBAL["head"])


def test_a_filter_clips_one_result_and_rejects_what_is_not_finite() -> None:
    from nvflare.apis.dxo import DXO, from_shareable

    from cosdefense.nvflare import UpdateFilter

    filter_, context = UpdateFilter("clip", {"max_norm": 2.0}), make_context()
    long = {"hidden": np.full((2, 2), 3.0, np.float32)}  # of norm 6
    result = from_shareable(filter_.process(DXO("WEIGHT_DIFF", data=long).to_shareable(), context))
    assert np.allclose(result.data["hidden"], 1.0)
    assert result.data["hidden"].dtype == np.float32
    whole = from_shareable(filter_.process(DXO("WEIGHTS", data=long).to_shareable(), context))
    assert np.allclose(whole.data["hidden"], 3.0)  # a whole model has no norm limit
    with pytest.raises(ValueError, match="not finite"):
        filter_.process(DXO("WEIGHT_DIFF", data={"hidden": np.array([np.inf], np.float32)}).to_shareable(), context)


def test_the_simulator_trains_although_a_client_is_malicious(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, str(here / "flare_federation.py"), str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-3000:]
    model = np.load(tmp_path / "server" / "simulate_job" / "models" / "server.npy")
    assert np.allclose(model, 0.75, atol=0.05), log[-3000:]  # half of the way to 1 in each of two rounds
    assert "round 0: 4 results, rejected: site-2" in log
    assert "round 1: 4 results, rejected: site-2" in log
