"""`Secure` as a defense: in Python, in an experiment's file, in the simulator; buffers; what it refuses."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from secure_examples import THOROUGH

from cosdefense import Cohort, Defense, Layout, Verdict, get
from cosdefense.aggregators import Mean, Median, NormLimitedMean
from cosdefense.attacks import Attack, PoisonedBuffers
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_defense, describe
from cosdefense.core import State, pack, unpack
from cosdefense.data import load as load_data
from cosdefense.filters import Clip, CosDefense, Krum, NormLimit
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.records import read_run
from cosdefense.runs.single_run import run
from cosdefense.secure import NoLengthProof, Secure
from cosdefense.simulation.loop import simulate
from cosdefense.testing import LAYOUT, check_defense
from worlds import digits_world

LIMITED = Defense((NormLimit(), CosDefense()), NormLimitedMean())


def draw_cohort(seed: int, n: int = 8, scale: float = 0.1, layout: Layout = LAYOUT) -> Cohort:
    rng = torch.Generator().manual_seed(seed)
    params = torch.randn(layout.size, generator=rng)
    for where in layout.variances:
        params[where] = params[where].abs() + 1
    return Cohort.of(scale * torch.randn(n, layout.size, generator=rng), params, layout, seed=seed)


def check_same(ours: Verdict, theirs: Verdict) -> None:
    assert torch.equal(ours.update, theirs.update)
    assert torch.equal(ours.weights, theirs.weights)
    assert ours.skipped == theirs.skipped
    assert ours.evidence.keys() == theirs.evidence.keys()
    for name, scores in ours.evidence.items():
        assert torch.equal(scores.nan_to_num(-1), theirs.evidence[name].nan_to_num(-1))


@pytest.mark.parametrize("defense", [get("cosdefense"), Defense((Clip(1.0), CosDefense()), Mean()), LIMITED])
def test_the_twin_decides_the_same_bits(defense: Defense) -> None:
    secure, opened = Secure(defense), 0
    state: State = secure.init()
    twin_state: State = secure.plain.init()
    for seed in range(3):
        cohort = draw_cohort(seed)
        verdict, state = secure(cohort, state)
        twin, twin_state = secure.plain(cohort, twin_state)
        check_same(verdict, twin)
        assert state == twin_state
        opened += verdict.skipped is None
        packed, tensors = pack(state)
        assert unpack(packed, tensors, secure.init()) == state
    assert opened >= 2


@pytest.mark.parametrize("scale", [1e-3, 0.1, 100.0])
def test_weights_are_combined_as_in_the_open(scale: float) -> None:
    """Without buffers: the clipped mean over the accepted of CosDefense."""
    layout = Layout(LAYOUT.shapes[:3], LAYOUT.head, 27)
    for seed in range(20):
        cohort = draw_cohort(seed, scale=scale, layout=layout)
        open_defense = Defense((Clip(4.0), CosDefense()), Mean())
        expected, _ = open_defense(cohort, open_defense.init())
        secure = Secure(get("cosdefense"), smallest=3).plain
        verdict, _ = secure(cohort, secure.init())
        if verdict.skipped is None:
            assert torch.equal(verdict.weights, expected.weights)
            assert torch.allclose(verdict.evidence["CosDefense"], expected.evidence["CosDefense"], atol=1e-5)
            assert torch.allclose(verdict.update, expected.update, rtol=1e-5, atol=2.0**-22)
        else:
            assert int((expected.weights > 0).sum()) < 3


def test_rows_that_are_not_finite_are_rejected() -> None:
    cohort = draw_cohort(1)
    updates = cohort.updates.clone()
    updates[2, 3] = torch.nan
    secure = Secure(get("cosdefense"))
    verdict, _ = secure(replace(cohort, updates=updates), secure.init())
    assert float(verdict.weights[2]) == 0
    assert bool(verdict.evidence["CosDefense"][2].isnan())
    assert bool(verdict.update.isfinite().all())
    check_defense(Secure(get("cosdefense"), smallest=3).plain)


def test_fewer_clients_than_can_be_opened_skip_the_round() -> None:
    secure = Secure(get("cosdefense"))
    judged, verdict, _ = secure.run_round(draw_cohort(0, n=2), secure.init())
    assert judged.too_few_clients
    assert verdict.skipped == "Secure opens sums of at least 3 clients, got 2 clients"
    strict = Secure(get("cosdefense"), smallest=7)
    _, verdict, _ = strict.run_round(draw_cohort(0), strict.init())
    assert verdict.skipped is not None
    assert "sums of fewer than 7 stay secret" in verdict.skipped
    assert not verdict.weights.any()
    assert not verdict.update.any()
    assert not bool(verdict.evidence["CosDefense"].isnan().any())  # scores are opened all the same


@pytest.mark.parametrize(
    ("defense", "options", "needed"),
    [
        (Defense((Krum(0.2),), Mean()), {}, "needs the filter CosDefense"),
        (Defense((), Mean()), {}, "got none"),
        (Defense((CosDefense(), Clip(1.0)), Mean()), {}, "Clip or NormLimit and CosDefense"),
        (Defense((CosDefense(),), Median()), {}, "others compare updates"),
        (get("cosdefense"), {"clip": 0.0}, "clip must be from"),
        (get("cosdefense"), {"colluders": 1.0}, "colluders must be in"),
        (get("cosdefense"), {"smallest": 2}, "smallest must be at least 3"),
        (LIMITED, {"clip": None}, "must not be None"),
    ],
)
def test_what_secure_refuses(defense: Defense, options: dict[str, Any], needed: str) -> None:
    with pytest.raises(ValueError, match=needed):
        Secure(defense, **options)


def test_factions_is_refused_and_told_what_works() -> None:
    """It compares updates with remembered ones, which the protocol does not do."""
    with pytest.raises(ValueError, match=r"got SupportedReferences\. Presets that work: cosdefense, two-references, "):
        Secure(get("factions"))


def test_unequal_weights_are_refused() -> None:
    cohort = draw_cohort(0)
    secure = Secure(get("cosdefense"))
    with pytest.raises(ValueError, match="equal weights"):
        secure(replace(cohort, weights=torch.arange(1.0, 9.0)), secure.init())


def test_updates_without_a_length_proof_are_warned_about() -> None:
    with pytest.warns(NoLengthProof, match="only bound"):
        secure = Secure(get("cosdefense"), clip=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoLengthProof)
        cohort = draw_cohort(0, scale=1e6)
        verdict, _ = secure(cohort, secure.init())
        check_same(verdict, secure.plain(cohort, secure.init())[0])
    assert float(verdict.update[12:24].abs().max()) <= 128
    assert float(verdict.update[:12].abs().max()) <= 8


def test_files_name_it_and_describe_gives_it_back() -> None:
    for table in (
        {"name": "cosdefense", "secure": True},
        {"name": "cosdefense", "secure": "plain"},
        {"name": "cosdefense", "threshold": "mad", "secure": {"clip": 2.0, "colluders": 0.3, "smallest": 5}},
        {"filters": [{"name": "norm-limit"}, {"name": "cosdefense"}], "secure": {"buffer_clip": 0.5}},
    ):
        secure = build_defense(table)
        assert isinstance(secure, Secure)
        assert build_defense(describe(secure)) == secure
    assert build_defense({"name": "cosdefense", "secure": "plain"}) == Secure(get("cosdefense")).plain
    assert build_defense({"name": "cosdefense", "secure": False}) == get("cosdefense")
    for secured, needed in (
        ("yes", 'true, false, "plain" or a table'),
        ({"clipp": 1.0}, "did you mean 'clip'"),
        ({"defense": {}}, "defense"),
        ({"clip": "long"}, "secure.clip must be a number"),
        ({"smallest": 1}, "smallest must be at least 3"),
    ):
        with pytest.raises(ConfigError, match=needed):
            build_defense({"name": "cosdefense", "secure": secured})
    with pytest.raises(ConfigError, match="needs the filter CosDefense"):
        build_defense({"name": "krum", "secure": True})


def experiment_table(secure: object, attack: str, rounds: int) -> dict[str, Any]:
    return {
        "name": "secure",
        "data": {"dataset": "digits", "clients": 20},
        "model": {"name": "mlp", "hidden": 8},
        "training": {"rounds": rounds, "sampled": 6, "batch": 4, "lr": 0.1, "evaluate_every": 100},
        "attacks": [{"name": attack}],
        "defenses": [{"name": "cosdefense", "secure": secure}],
    }


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["none", "inner-product", "label-flip"])
def test_recorded_runs_are_those_of_the_twin(attack: str, tmp_path: Path) -> None:
    rounds = 300 if THOROUGH else 4
    kept = []
    for secure in (True, "plain"):
        cell = from_table(experiment_table(secure, attack, rounds))
        folder = cell.folder(tmp_path)
        run(cell, folder, load_data("digits"), torch.device("cpu"))
        kept.append([replace(record, seconds={}, peak_memory={}) for record in read_run(folder).rounds])
    assert len(kept[0]) == rounds
    assert repr(kept[0]) == repr(kept[1])


SHOWN: list[Defense] = []


@dataclass(frozen=True)
class Curious(Attack):
    """Remembers the defense that adaptive attackers may try out, and forges nothing."""

    scale: float = 1.0

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        SHOWN.append(defense)
        return self, state


@pytest.mark.slow
def test_the_simulator_runs_it_and_adaptive_attackers_rehearse_on_the_twin() -> None:
    world, secure = digits_world(), Secure(get("cosdefense"))
    finals = []
    for defense in (secure, secure.plain):
        rounds = simulate(world, Curious(), defense, rounds=1, sampled=6, batch=4, seed=0)
        finals.append([round_.after.params for round_ in rounds][-1])
    assert torch.equal(finals[0], finals[1])
    assert [secure.plain, secure.plain] == SHOWN


def test_poisoned_buffers_stay_within_the_bounds() -> None:
    """Means of a million, variances to nothing; weights honest, so that CosDefense cannot tell."""
    for attack in (PoisonedBuffers(1e6, -20.0), PoisonedBuffers(-1e6, 1e6), PoisonedBuffers(1e30, -1e30)):
        secure, params = Secure(get("cosdefense"), smallest=3), draw_cohort(0).params
        twin, state = secure.plain, secure.init()
        for seed in range(100 if THOROUGH else 10):
            cohort = replace(draw_cohort(seed, n=10, scale=0.01), params=params)
            forged, _ = attack.forge(cohort, torch.arange(10) < 3, None)
            updates = torch.where(torch.arange(10)[:, None] < 3, forged, cohort.updates)
            verdict, state = twin(replace(cohort, updates=updates), state)
            change, buffers = verdict.update[27:], params[27:]
            mean_unit, variance_unit = (
                2.0 ** torch.log2(scale).ceil()
                for scale in (
                    torch.maximum(_rms(buffers[:4]), _rms(buffers[4:]).sqrt()),
                    _rms(buffers[4:]),
                )
            )
            assert float(change[:4].abs().max()) <= float(mean_unit)
            assert float(change[4:].max()) <= float(variance_unit)
            assert bool((buffers[4:] + change[4:] >= 0.0999 * buffers[4:]).all())
            params = params + verdict.update
        assert bool(params.isfinite().all())


def test_a_running_mean_of_zero_can_start_to_move() -> None:
    cohort = draw_cohort(1, n=10)
    params = cohort.params.clone()
    params[27:31] = 0
    updates = cohort.updates.clone()
    updates[:, 27:31] = 0.5
    secure = Secure(get("cosdefense"), smallest=3).plain
    verdict, _ = secure(replace(cohort, params=params, updates=updates), secure.init())
    assert verdict.skipped is None
    assert torch.allclose(verdict.update[27:31], torch.tensor(0.5), atol=1e-4)


def test_colluding_zero_heads_do_not_open_a_single_update() -> None:
    """Clients with a zero head are accepted and lower the mean; fewer than two others is never opened."""
    for seed in range(50):
        cohort = draw_cohort(seed, n=10)
        updates = cohort.updates.clone()
        updates[:2, LAYOUT.slices["head.weight"]] = 0
        secure = Secure(get("cosdefense")).plain
        verdict, _ = secure(replace(cohort, updates=updates), secure.init())
        others = int((verdict.weights[2:] > 0).sum())
        assert others == 0 if verdict.skipped else others >= 2


def _rms(values: torch.Tensor) -> torch.Tensor:
    return values.double().square().mean().sqrt()
