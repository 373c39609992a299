"""Persistent: its candidates and running means by a slow twin, the choice among them, and what it does over rounds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from cosdefense import Aggregator, Attack, Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean, Median
from cosdefense.attacks import Adaptive, NoiseCamouflage, Persistent
from cosdefense.attacks.persistent import PersistentMemory
from cosdefense.catalog.registry import build_attack, describe
from cosdefense.core import State, generator, pack, unpack
from cosdefense.data import load as load_data
from cosdefense.runs.experiment_file import from_table
from interrupted_runs import rounds_run

Vector = NDArray[np.float64]
T, MALICIOUS = 6, torch.tensor([False, True, False, False, True])
NOBODY, EVERYBODY = torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)
LAYOUT = Layout((("w", (T,)), ("norm.running_mean", (1,))), "w", T)


def round_of(number: int, drift: float = 0.5) -> Cohort:
    """Five clients, not in the order of their numbers, who agree a little about the direction."""
    rng = torch.Generator().manual_seed(number)
    updates = drift + torch.randn(5, T + 1, generator=rng, dtype=torch.float64)
    params = torch.linspace(-1, 2, T + 1, dtype=torch.float64)
    return Cohort.of(updates, params, LAYOUT, torch.tensor([8, 3, 5, 1, 9]), seed=number)


@dataclass(frozen=True)
class Recording(Aggregator):
    """The mean, which keeps a copy of all updates that it was asked about, by client."""

    asked: list[Tensor] = field(default_factory=list, compare=False, hash=False)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        self.asked.append(cohort.updates[cohort.clients.argsort()].clone())
        return cohort.updates.mean(dim=0), state


def unit(vector: Vector) -> Vector:
    length = math.sqrt(math.fsum(vector**2))
    return vector / length if length else vector


@dataclass
class Twin:
    """The attack by its docstring, one client and one coordinate vector at a time, against the plain mean."""

    decay: float = 0.95
    direction: Vector | None = None
    sent: Vector | None = None

    def average(self, past: Vector | None, now: Vector) -> Vector:
        return now if past is None else self.decay * past + (1 - self.decay) * now

    def list_rows(self, cohort: Cohort, malicious: list[bool]) -> list[dict[int, Vector]]:
        """For every combination what each malicious client sends: by its number, without the statistic."""
        assert self.direction is not None
        clients, rows = cohort.clients.tolist(), cohort.updates.numpy()[:, :T]
        norm = float(np.median([math.hypot(*row) for row, bad in zip(rows, malicious, strict=True) if not bad]))
        back, model = -unit(self.direction[:T]), unit(cohort.params.numpy()[:T])
        hidden = back
        if self.sent is not None:
            past = unit(self.sent[:T])
            hidden = unit(unit(back - (back @ past) * past) + 0.05 * past)
        found: list[dict[int, Vector]] = []
        for length, share, push in product((1.0, 0.5, 2.0, 0.25), (0.0, 0.1, 0.3), (back, hidden)):
            for noise in (0.85, 0.0, None):
                sends = {}
                for client, row, bad in zip(clients, rows, malicious, strict=True):
                    if bad:
                        drawn = torch.randn(T, generator=generator(cohort.seed, "persistent", client)).double().numpy()
                        extra = row if noise is None else noise * norm * unit(drawn)
                        sends[client] = length * norm * push + share * norm * model + extra
                found.append(sends)
        return found

    def forge(self, cohort: Cohort, mask: Tensor) -> tuple[Vector, list[dict[int, Vector]]]:
        """What all clients send, and what was tried."""
        rows, malicious = cohort.updates.numpy().copy(), mask.tolist()
        mean = rows[~mask.numpy()].mean(axis=0)
        self.direction = self.average(self.direction, mean)
        tried = self.list_rows(cohort, malicious) if any(malicious) else []
        # Honest rows are the same in all of them: the most damaging is the one whose sum goes back the farthest.
        sums = [sum(float(row @ self.direction[:T]) for row in sends.values()) for sends in tried]
        for i, client in enumerate(cohort.clients.tolist()):
            if malicious[i]:
                rows[i] = np.append(tried[int(np.argmin(sums))][client], mean[T])
        self.sent = self.average(self.sent, rows.mean(axis=0))
        return rows, tried


@pytest.mark.parametrize("decay", [0.95, 0.3, 0.0])
def test_it_agrees_with_a_slow_twin(decay: float) -> None:
    """All candidates, what is sent, and both running means, in rounds with and without malicious clients."""
    rule, twin = Recording(), Twin(decay)
    attack = Persistent(Defense((), rule), decay=decay)
    state = attack.init()
    for number, mask in enumerate((MALICIOUS, NOBODY, MALICIOUS, ~MALICIOUS, MALICIOUS)):
        cohort = round_of(number)
        rule.asked.clear()
        forged, state = attack.forge(cohort, mask, state)
        rows, tried = twin.forge(cohort, mask)
        assert len(rule.asked) == len(tried) == (72 if bool(mask.any()) else 0)
        clients = cohort.clients.sort().values.tolist()
        for asked, sends in zip(rule.asked, tried, strict=True):
            for client, row in sends.items():
                assert asked[clients.index(client), :T].numpy() == pytest.approx(row, abs=1e-12)
        assert forged.numpy() == pytest.approx(rows, abs=1e-12)
        assert torch.equal(forged[~mask], cohort.updates[~mask])
        assert state.direction.numpy() == pytest.approx(twin.direction, abs=1e-12)
        assert state.sent.numpy() == pytest.approx(twin.sent, abs=1e-12)


def test_the_hidden_direction() -> None:
    """The fifth candidate of a later round has a cosine of about 0.05 with what was sent, and goes backwards."""
    rule = Recording()
    attack = Persistent(Defense((), rule))
    _, state = attack.forge(round_of(0), MALICIOUS, attack.init())
    cohort, sent = round_of(1), state.sent[:T]
    rule.asked.clear()
    _, state = attack.forge(cohort, MALICIOUS, state)
    row = rule.asked[4][1, :T]  # without noise, by the client with the number 3
    assert float(row @ sent / row.norm() / sent.norm()) == pytest.approx(0.05 / math.sqrt(1 + 0.05**2))
    assert float(row @ state.direction[:T]) < 0
    assert float(row.norm()) == pytest.approx(float(cohort.updates[~MALICIOUS, :T].norm(dim=1).median()))


DEFENSES = {"mean": Defense((), Mean()), "median": Defense((), Median())} | {
    name: get(name) for name in ("cosdefense", "multi-krum", "opposed-clusters", "factions")
}


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("opposed", [False, True])
def test_it_sends_the_most_damaging_along_the_running_mean(name: str, opposed: bool) -> None:
    """Also in a round whose honest mean opposes the running mean."""
    defense, twin, memory = DEFENSES[name], Twin(), DEFENSES[name].init()
    attack: Attack = Persistent(defense)
    state = attack.init()
    for number in range(3):
        cohort = round_of(number, drift=-1.0 if opposed and number == 2 else 1.0)
        attack, state = attack.with_defense(defense, memory, state)
        before = memory
        twin.direction = None if state.direction is None else state.direction.numpy()
        twin.sent = None if state.sent is None else state.sent.numpy()
        forged, state = attack.forge(cohort, MALICIOUS, state)
        verdict, memory = defense(replace(cohort, updates=forged), memory)
    axis = state.direction[:T]
    assert (float(cohort.updates[~MALICIOUS, :T].mean(dim=0) @ axis) < 0) == opposed
    reached = []
    for sends in twin.forge(cohort, MALICIOUS)[1]:
        updates = forged.clone()  # with honest statistics
        for i, client in enumerate(cohort.clients.tolist()):
            if client in sends:
                updates[i, :T] = torch.from_numpy(sends[client])
        reached.append(float(defense(replace(cohort, updates=updates), before)[0].update[:T] @ axis))
    assert float(verdict.update[:T] @ axis) == pytest.approx(min(reached), abs=1e-9)
    assert min(reached) < max(reached) - 1e-3


def test_the_number_of_trials() -> None:
    for trials, asked in ((1, 1), (5, 5), (72, 72), (1000, 72)):
        rule = Recording()
        Persistent(Defense((), rule), trials=trials).forge(round_of(0), MALICIOUS, PersistentMemory())
        assert len(rule.asked) == asked


def test_the_same_input_gives_the_same_rows_in_any_order() -> None:
    attack, cohort, order = Persistent(get("factions")), round_of(1), torch.tensor([3, 0, 4, 1, 2])
    _, state = attack.forge(round_of(0), MALICIOUS, attack.init())
    rows, after = attack.forge(cohort, MALICIOUS, state)
    again, _ = attack.forge(cohort, MALICIOUS, state)
    assert torch.equal(again, rows)
    shuffled = replace(cohort, updates=cohort.updates[order], clients=cohort.clients[order])
    other, after_other = attack.forge(shuffled, MALICIOUS[order], state)
    assert torch.equal(other, rows[order])
    assert torch.equal(after_other.direction, after.direction)


@pytest.mark.parametrize("name", ["fedavg", "factions", "foolsgold"])
def test_what_it_remembers_can_be_saved(name: str) -> None:
    """Its own running means and the defense's memory."""
    attack = Persistent(get(name), trials=5)
    state = attack.init()
    for number in range(3):
        structure, tensors = pack(state)
        loaded = unpack(json.loads(json.dumps(structure)), tensors, attack.init())
        rows, state = attack.forge(round_of(number), MALICIOUS, state)
        again, _ = attack.forge(round_of(number), MALICIOUS, loaded)
        assert torch.equal(again, rows)


def test_without_malicious_or_without_honest_clients() -> None:
    attack, cohort = Persistent(get("factions")), round_of(0)
    forged, state = attack.forge(cohort, NOBODY, attack.init())
    assert torch.equal(forged, cohort.updates)
    assert torch.equal(state.direction, cohort.updates[cohort.clients.argsort()].mean(dim=0))  # it watches
    assert torch.equal(state.sent, state.direction)
    forged, after = attack.forge(round_of(1), EVERYBODY, state)
    assert torch.equal(forged, round_of(1).updates)
    assert after is state


def test_zeros_stay_finite() -> None:
    cohort = replace(round_of(0), updates=torch.zeros(5, T + 1, dtype=torch.float64))
    forged, state = Persistent(get("factions")).forge(cohort, MALICIOUS, PersistentMemory())
    assert not bool(forged.any())
    assert not bool(state.direction.any())


def test_with_defense() -> None:
    krum, median, own = get("krum"), get("median"), PersistentMemory(torch.ones(2), None, "of the attack")
    told = replace(own, defense="of the server")
    assert Persistent(trials=9).with_defense(krum, "of the server", own) == (Persistent(krum, trials=9), told)
    assert Persistent(median).with_defense(krum, "of the server", own) == (Persistent(median), own)


def test_in_files_and_mistakes() -> None:
    attack = build_attack({"name": "persistent", "defense": "krum", "trials": 30, "decay": 0.5})
    assert attack == Persistent(get("krum"), 30, 0.5)
    assert build_attack(describe(attack)) == attack
    for options, complaint in (
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"decay": -0.1}, r"decay must be in \[0, 1\), got -0.1"),
        ({"decay": math.nan}, r"decay must be in \[0, 1\), got nan"),
    ):
        with pytest.raises(ValueError, match=f"Persistent.{complaint}"):
            Persistent(**options)


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    """In the simulator, where the attack has no defense of its own and remembers the server's."""
    table: dict[str, Any] = {
        "name": "small", "data": {"dataset": "digits", "clients": 20, "malicious": 0.4},
        "model": {"name": "mlp", "hidden": 8}, "training": {"rounds": 6, "sampled": 6, "batch": 4},
        "attacks": [{"name": "persistent", "trials": 5}], "defenses": [{"name": "factions"}],
    }  # fmt: skip
    cell, data = from_table(table), load_data("digits")
    assert len(rounds_run(cell, tmp_path / "straight", data)) == 6
    assert len(rounds_run(cell, tmp_path / "broken", data, stop_after=3)) == 3
    assert len(rounds_run(cell, tmp_path / "broken", data)) == 3
    straight, broken = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("straight", "broken"))
    assert straight.keys() == broken.keys()
    assert all(torch.equal(broken[key], tensor) for key, tensor in straight.items())


def progress(attack: Attack, name: str, seed: int, rounds: int = 20, d: int = 100) -> float:
    """How far the model gets in a federation whose clients agree by a cosine of 0.04; three of ten are malicious."""
    defense, rng, malicious = get(name), torch.Generator().manual_seed(seed), torch.arange(10) >= 7
    goal = torch.randn(d, generator=rng, dtype=torch.float64)
    goal = goal / goal.norm()
    params, memory, state = 0.1 * goal, defense.init(), attack.init()
    for number in range(rounds):
        noise = torch.randn(10, d, generator=rng, dtype=torch.float64)
        updates = 0.2 * goal + noise / noise.norm(dim=1, keepdim=True)
        cohort = Cohort.of(updates, params, Layout((("w", (d,)),), "w", d), seed=number)
        informed, state = attack.with_defense(defense, memory, state)
        rows, state = informed.forge(cohort, malicious, state)
        sent = torch.where(malicious[:, None], rows, updates)
        verdict, memory = defense(replace(cohort, updates=sent), memory)
        params = params + verdict.update
    return float(params @ goal)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_harms_opposed_clusters_more_than_attacks_on_single_rounds(seed: int) -> None:
    """With as many trials as the adaptive attack, it leaves a third of what no attack leaves."""
    attacks = (Attack(), Adaptive(trials=72), NoiseCamouflage(), Persistent())
    honest, adaptive, camouflaged, persistent = (progress(attack, "opposed-clusters", seed) for attack in attacks)
    assert persistent < camouflaged < adaptive
    assert persistent < honest / 3
