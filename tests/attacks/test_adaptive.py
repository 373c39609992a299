"""Adaptive: on every defense of the catalog it does at least as much damage as inner product manipulation."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cosdefense import Aggregator, Attack, Cohort, Defense, Filter, Judgment, Layout, get
from cosdefense.aggregators import Mean
from cosdefense.attacks import Adaptive, InnerProduct
from cosdefense.attacks._candidates import CANDIDATE_GRID, HONEST_CANDIDATE, Candidate, CandidateBuilder
from cosdefense.attacks.adaptive import _draw_honest_updates
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import PRESETS, build_attack, describe
from cosdefense.core import State, pack
from cosdefense.data import load as load_data
from cosdefense.ops import cosines
from cosdefense.runs.experiment import to_table, to_toml
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.prepare import dry_run
from cosdefense.simulation.loop import simulate
from cosdefense.testing.examples import LAYOUT, ExampleTrustedData
from interrupted_runs import rounds_run
from promises import SHORTER
from shapes import unchecked
from worlds import digits_world

MALICIOUS = torch.arange(10) >= 7
HEAD = LAYOUT.slices["head.weight"]


def round_of(number: int, *, n: int = 10, drift: float = 1.0) -> Cohort:
    """Clients that agree about the direction and differ around it; the server's data say about the same."""
    rng = torch.Generator().manual_seed(number)
    common = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    updates = 0.1 * (drift * common + torch.randn(n, LAYOUT.size, generator=rng, dtype=torch.float64))
    params = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    for where in LAYOUT.variances:
        params[where], updates[:, where] = params[where].abs() + 1, updates[:, where].abs()
    return Cohort.of(updates, params, LAYOUT, seed=number, trusted_data=ExampleTrustedData(0.1))


def damage(defense: Defense, cohort: Cohort, rows: Tensor, memory: State, malicious: Tensor = MALICIOUS) -> float:
    """By its definition, in numpy: what is missing along the honest mean, in its lengths."""
    sent = torch.where(malicious[:, None], rows, cohort.updates)
    update = defense(replace(cohort, updates=sent), memory)[0].update.numpy()[: LAYOUT.n_trainable]
    mean = cohort.updates[~malicious].numpy()[:, : LAYOUT.n_trainable].mean(axis=0)
    return float(np.dot(mean - update, mean) / np.dot(mean, mean))


def remembered(defense: Defense) -> State:
    """What the defense remembers after three honest rounds."""
    memory = defense.init()
    for number in range(100, 103):
        _, memory = defense(round_of(number), memory)
    return memory


def frozen(memory: State) -> tuple[str, list[list[float]]]:
    structure, tensors = pack(memory)
    return json.dumps(structure), [tensor.flatten().tolist() for tensor in tensors.values()]


def count_trials(name: str) -> int:
    """How many are enough for some damage: these six withstand the first twenty."""
    return 75 if name in ("alignins", "diversefl", "dnc", "freqfed", "multi-krum", "nnm") else 20


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_defense(name: str) -> None:
    defense, cohort = get(name, **SHORTER.get(name, {})), round_of(0)
    memory = remembered(defense)
    before = frozen(memory)
    attack, state = Adaptive(trials=count_trials(name)).with_defense(defense, memory, Adaptive().init())
    forged, _ = attack.forge(cohort, MALICIOUS, state)
    assert bool(forged.isfinite().all())
    assert torch.equal(forged[~MALICIOUS], cohort.updates[~MALICIOUS])
    assert frozen(memory) == before
    assert torch.equal(attack.forge(cohort, MALICIOUS, state)[0], forged)
    plain, _ = InnerProduct(5.0).forge(cohort, MALICIOUS, None)
    found = damage(defense, cohort, forged, memory)
    assert found >= damage(defense, cohort, plain, memory) - 1e-9
    assert found >= damage(defense, cohort, cohort.updates, memory) - 1e-9
    assert found > 0.05  # some damage against every defense


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_defense_with_partial_knowledge(name: str) -> None:
    """What honest clients send changes nothing: it is not known."""
    defense, cohort = get(name, **SHORTER.get(name, {})), round_of(0)
    others = replace(cohort, updates=torch.where(MALICIOUS[:, None], cohort.updates, 17.0))
    attack = Adaptive(defense, "partial", trials=count_trials(name))
    forged, state = attack.forge(cohort, MALICIOUS, attack.init())
    unseen, _ = attack.forge(others, MALICIOUS, attack.init())
    assert bool(forged.isfinite().all())
    assert torch.equal(forged[MALICIOUS], unseen[MALICIOUS])
    assert not torch.equal(forged[MALICIOUS], cohort.updates[MALICIOUS])
    again, _ = attack.forge(round_of(1), MALICIOUS, state)  # with what it believes the server to remember
    assert bool(again.isfinite().all())


def wide_round(number: int) -> Cohort:
    """A last layer of 400 weights, in which clients agree to shrink, a little: what CosDefense sees in its opposite."""
    layout = Layout((("features.weight", (10, 20)), ("head.weight", (20, 20))), "head.weight", 600)
    rng = torch.Generator().manual_seed(number)
    params, common = torch.randn(2, 600, generator=rng, dtype=torch.float64)
    common[200:] -= 0.5 * params[200:]
    return Cohort.of(common + 2 * torch.randn(10, 600, generator=rng, dtype=torch.float64), params, layout)


@pytest.mark.parametrize("knowledge", ["full", "partial"])
@pytest.mark.parametrize("number", range(4))
def test_it_finds_the_orthogonal_last_layer(knowledge: str, number: int) -> None:
    """CosDefense detects inner product manipulation, but not the same made orthogonal to the last layer."""
    defense, cohort = get("cosdefense"), wide_round(number)
    plain, _ = InnerProduct(5.0).forge(cohort, MALICIOUS, None)
    verdict, _ = defense(replace(cohort, updates=torch.where(MALICIOUS[:, None], plain, cohort.updates)), (None, None))
    assert verdict.weights[MALICIOUS].tolist() == [0] * 3
    forged, _ = Adaptive(defense, knowledge).forge(cohort, MALICIOUS, None)  # type: ignore[arg-type]
    verdict, _ = defense(replace(cohort, updates=forged), (None, None))
    assert verdict.weights[MALICIOUS].tolist() == [1] * 3
    head, model = forged[MALICIOUS][:, 200:], cohort.params[200:]
    assert float((head @ model / head.norm(dim=1) / model.norm()).abs().max()) < 1e-9
    assert float(verdict.update @ cohort.updates[~MALICIOUS].mean(dim=0)) < 0


@dataclass(frozen=True)
class SignSplit(Filter):
    """Two clusters by the signs of the leading eigenvector of the cosines; if opposed, the larger one stays."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        alike = cosines(cohort.trainable())
        side = torch.linalg.eigh(alike).eigenvectors[:, -1] >= 0
        larger = side if int(side.sum()) * 2 >= len(side) else ~side
        agreed = bool(side.all() | ~side.any()) or float(alike[side][:, ~side].mean()) >= 0
        return Judgment((~larger).to(cohort.updates.dtype), larger | agreed), state


def test_camouflage_against_a_filter_that_splits_by_sign() -> None:
    """Reversed updates are all rejected; the attack finds damaging ones that the filter accepts."""
    defense = Defense((SignSplit(),), Mean())
    for number in range(5):
        cohort = round_of(number)
        plain, _ = InnerProduct(1.0).forge(cohort, MALICIOUS, None)
        verdict, _ = defense(
            replace(cohort, updates=torch.where(MALICIOUS[:, None], plain, cohort.updates)), (None, None)
        )
        assert verdict.weights.tolist() == [1] * 7 + [0] * 3
        forged, _ = Adaptive(defense).forge(cohort, MALICIOUS, None)
        verdict, _ = defense(replace(cohort, updates=forged), (None, None))
        assert verdict.weights[MALICIOUS].tolist() == [1] * 3
        assert damage(defense, cohort, forged, (None, None)) > 0.2


@dataclass(frozen=True)
class Counting(Aggregator):
    """The mean, and how often it was asked."""

    asked: list[int] = field(default_factory=list, compare=False, hash=False)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        self.asked.append(len(cohort))
        return cohort.updates.mean(dim=0), state


@pytest.mark.parametrize("trials", [2, 30, 73, 74, 75, 100])
def test_the_number_of_trials(trials: int) -> None:
    rule = Counting()
    Adaptive(Defense((), rule), trials=trials).forge(round_of(0), MALICIOUS, None)
    assert rule.asked == [10] * trials
    assert len(CANDIDATE_GRID) + 1 == 73


def test_enough_damage_stops_the_search() -> None:
    """The first trial sends nothing harmful, the second is inner product manipulation: 3 of 10 at −5 do 1.8."""
    rule = Counting()
    forged, _ = Adaptive(Defense((), rule), trials=73, stop_at_damage=1.7).forge(round_of(0), MALICIOUS, None)
    plain, _ = InnerProduct(5.0).forge(round_of(0), MALICIOUS, None)
    assert rule.asked == [10, 10]
    assert torch.allclose(forged[MALICIOUS], plain[MALICIOUS])
    with pytest.raises(ValueError, match=r"Adaptive.stop_at_damage must be positive, got 0"):
        Adaptive(stop_at_damage=0.0)


def test_more_trials_never_do_less_damage() -> None:
    defense, cohort = get("multi-krum"), round_of(0)
    found = [
        damage(defense, cohort, Adaptive(defense, trials=trials).forge(cohort, MALICIOUS, None)[0], defense.init())
        for trials in (2, 20, 73, 150, 300)
    ]
    assert found == sorted(found)
    assert found[-1] > found[2] > 0  # steps around the best of the grid find more


def test_the_magnitude_is_at_most_25() -> None:
    """The plain mean accepts any length; the search has a limit."""
    cohort = round_of(0)
    forged, _ = Adaptive(get("fedavg"), trials=150).forge(cohort, MALICIOUS, None)
    assert torch.equal(forged[MALICIOUS], -25 * cohort.updates[~MALICIOUS].mean(dim=0).expand(3, -1))


def test_the_servers_data_are_evaluated_once() -> None:
    asked = list[str]()

    class Server(ExampleTrustedData):
        def update(self, params: Tensor, seed: int) -> Tensor:
            asked.append("update")
            return super().update(params, seed)

        def guides(self, clients: Tensor, params: Tensor, seed: int) -> Tensor:
            asked.append("guides")
            return super().guides(clients, params, seed)

    cohort = replace(round_of(0), trusted_data=Server(0.1))
    for name in ("fltrust", "diversefl"):
        with_memory, _ = Adaptive(get(name), trials=20).forge(cohort, MALICIOUS, None)
        without, _ = Adaptive(get(name), trials=20).forge(round_of(0), MALICIOUS, None)
        assert torch.equal(with_memory, without)
    assert asked == ["update", "guides"]


def test_what_is_sent() -> None:
    """The formula, and that inner product manipulation is one of the grid, to the bit."""
    cohort = round_of(0)
    known = cohort.updates[~MALICIOUS]
    builder = CandidateBuilder.from_cohort(cohort, known, MALICIOUS)
    plain, _ = InnerProduct(5.0).forge(cohort, MALICIOUS, None)
    assert torch.equal(builder.build(CANDIDATE_GRID[0]), plain[MALICIOUS])
    assert torch.equal(builder.build(HONEST_CANDIDATE), cohort.updates[MALICIOUS])
    mixed = builder.build(Candidate("sign", 2.0, "own", 0.5))
    mean = known.mean(dim=0).numpy()
    t = LAYOUT.n_trainable
    length = np.linalg.norm(mean[:t]) / np.linalg.norm(np.sign(mean[:t]))
    assert mixed.numpy() == pytest.approx(0.5 * cohort.updates[MALICIOUS].numpy() - 2 * length * np.sign(mean))
    for direction in builder.directions.values():
        assert float(direction[:t].norm()) == pytest.approx(float(np.linalg.norm(mean[:t])))
    head = builder.directions["last_layer"]
    assert set(head.nonzero().flatten().tolist()) == set(range(HEAD.start, HEAD.stop))
    tilted = builder.directions["positive_cosine"].numpy()[:t]
    rows = known.numpy()[:, :t]
    cosines_with = rows @ tilted / np.linalg.norm(rows, axis=1) / np.linalg.norm(tilted)
    assert 0 < cosines_with.mean() < 0.1
    assert tilted @ mean[:t] < 0  # still backwards
    sideways = LAYOUT.unflatten(builder.directions["orthogonal"])
    for name, model in LAYOUT.unflatten(cohort.params).items():
        if name in LAYOUT.trainable:
            assert float((sideways[name] * model).sum()) == pytest.approx(0, abs=1e-12)


def test_drawn_honest_updates_resemble_the_attackers_own() -> None:
    """The mean and the covariance of their own updates, in as many clients as the round has."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=(4, LAYOUT.size))
    n = 20_004
    cohort = round_of(0, n=n)
    malicious = torch.arange(n) < 4
    cohort.updates[:4] = torch.from_numpy(own)
    found = _draw_honest_updates(cohort, malicious)
    assert torch.equal(found[:4], cohort.updates[:4])
    honest = found[4:].numpy()
    assert honest.mean(axis=0) == pytest.approx(own.mean(axis=0), abs=0.05)
    assert np.cov(honest.T) == pytest.approx(np.cov(own.T), abs=0.15)
    alone = _draw_honest_updates(round_of(0), torch.arange(10) == 0)
    assert bool((alone == alone[0]).all())


def test_with_defense() -> None:
    krum, median = get("krum"), get("median")
    without_defense = Adaptive(trials=9)
    assert without_defense.with_defense(krum, "of the server", "of the attack") == (
        Adaptive(krum, trials=9),
        "of the server",
    )
    assert replace(without_defense, knowledge="partial").with_defense(krum, "of the server", "of the attack") == (
        Adaptive(krum, "partial", 9),
        "of the attack",
    )
    assert Adaptive(krum).with_defense(krum, "of the server", "of the attack") == (Adaptive(krum), "of the server")
    assert Adaptive(median).with_defense(krum, "of the server", "of the attack") == (
        Adaptive(median),
        "of the attack",
    )  # it was given a different defense
    assert Attack().with_defense(krum, "of the server", "of the attack") == (Attack(), "of the attack")
    assert Adaptive().init() is None
    assert frozen(Adaptive(get("foolsgold")).init()) == frozen(get("foolsgold").init())


def test_without_malicious_clients_or_with_zero_updates() -> None:
    cohort, nobody = round_of(0), torch.zeros(10, dtype=torch.bool)
    forged, state = Adaptive().forge(cohort, nobody, None)
    assert torch.equal(forged, cohort.updates)
    assert state is None
    still, _ = Adaptive(get("krum")).forge(replace(cohort, updates=torch.zeros_like(cohort.updates)), MALICIOUS, None)
    assert not bool(still.any())


@dataclass(frozen=True)
class Recording(Adaptive):
    """Records the arguments of `with_defense`."""

    seen: list[Any] = field(default_factory=list, compare=False, hash=False)

    def with_defense(self, defense: Defense, memory: State, state: State) -> tuple[Attack, State]:
        self.seen.append((defense, memory))
        return super().with_defense(defense, memory, state)


def test_the_simulator_passes_the_defense_and_its_memory() -> None:
    attack, defense = Recording(trials=2), get("foolsgold")
    rounds = list(simulate(digits_world(), attack, defense, rounds=3, sampled=10, batch=4, seed=0))
    assert [given for given, _ in attack.seen] == [defense] * 3
    memories = [defense.init(), *(round_.after.defense_state for round_ in rounds)]
    assert [frozen(memory) for _, memory in attack.seen] == [frozen(memory) for memory in memories[:3]]


def test_in_files(tmp_path: Path) -> None:
    assert build_attack({"name": "adaptive"}) == build_attack({"name": "adaptive", "defense": "none"}) == Adaptive()
    assert build_attack({"name": "adaptive", "defense": "cosdefense"}) == Adaptive(get("cosdefense"))
    table = {"name": "krum", "contamination": 0.2}
    attack = build_attack({"name": "adaptive", "defense": table, "knowledge": "partial", "trials": 50})
    assert attack == Adaptive(get("krum", contamination=0.2), "partial", 50)
    assert build_attack(describe(attack)) == attack
    for given, complaint in (
        ("cosdefens", "defense 'cosdefens' is unknown: did you mean 'cosdefense'?"),
        (5, "attack adaptive.defense must be Defense, got 5"),
    ):
        with pytest.raises(ConfigError, match=complaint.replace("?", r"\?")):
            build_attack({"name": "adaptive", "defense": given})
    with pytest.raises(ConfigError, match=r"attack noise: option 'defense' is unknown"):
        build_attack({"name": "noise", "defense": "krum"})


EXPERIMENT = {
    "name": "small",
    "data": {"dataset": "digits", "clients": 20, "malicious": 0.4},
    "model": {"name": "mlp", "hidden": 8},
    "training": {"rounds": 6, "sampled": 6, "batch": 4, "lr": 0.1, "evaluate_every": 3},
    "attacks": [{"name": "adaptive", "knowledge": "partial", "trials": 5}],
    "defenses": [{"name": "foolsgold"}],
}


@pytest.mark.parametrize("defense", ["none", "rffl"])
def test_an_interrupted_run_resumes(tmp_path: Path, defense: str) -> None:
    """The attackers' estimate of the server's memory is part of the checkpoint."""
    attacks = [{**EXPERIMENT["attacks"][0], "defense": defense}]  # type: ignore[index]
    cell = from_table({**EXPERIMENT, "attacks": attacks})
    assert from_table(to_table(cell)) == cell
    assert "adaptive" in to_toml(cell)
    data = load_data("digits")
    dry_run(cell, data)
    assert len(rounds_run(cell, tmp_path / "straight", data)) == 6
    rounds_run(cell, tmp_path / "broken", data, stop_after=3)
    assert len(rounds_run(cell, tmp_path / "broken", data)) == 3
    straight, broken = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("straight", "broken"))
    assert straight.keys() == broken.keys()
    assert all(torch.equal(broken[key], tensor) for key, tensor in straight.items())


def test_mistakes_are_named() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        Adaptive(knowledge="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Adaptive.trials must be at least 2, got 1"):
        Adaptive(trials=1)


def test_a_model_whose_head_is_not_known_is_attacked_too() -> None:
    cohort = round_of(0)
    rows, _ = Adaptive(get("fedavg"), trials=9).forge(
        replace(cohort, layout=replace(LAYOUT, head=None)), MALICIOUS, None
    )
    assert damage(get("fedavg"), cohort, rows, get("fedavg").init()) > 1
