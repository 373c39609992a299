"""Mimic: all malicious clients copy the honest client farthest out along z, always the same one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cosdefense import Cohort
from cosdefense.attacks import Mimic
from cosdefense.core import State, generator
from doubles import cohort_of, save_and_load
from shapes import unchecked

MALICIOUS = torch.arange(8) >= 6


def play(attack: Mimic, n_rounds: int, clients: list[list[int]] | None = None) -> tuple[list[int], list[Cohort], State]:
    """Whose row all attackers sent, round by round. Honest clients differ along (1, −1), each by its own identity."""
    rng, state = np.random.default_rng(0), attack.init()
    copied, history = [], []
    for number in range(n_rounds):
        names = list(range(8)) if clients is None else clients[number]
        places = np.array([[-1.0, 0.5, 2.0, -0.5, 0.0, 1.0, 9.0, -9.0][name % 8] for name in names])
        rows = places[:, None] * np.array([1.0, -1.0]) + 0.3 * rng.normal(size=(len(names), 2))
        cohort = cohort_of(rows, names, seed=number)
        malicious = torch.tensor([name % 8 >= 6 for name in names])
        forged, state = attack.forge(cohort, malicious, state)
        assert bool((forged[malicious] == forged[malicious][0]).all())
        (match,) = (
            (cohort.updates == forged[malicious][0]).all(dim=1).nonzero().flatten().tolist()
        )  # statistics included
        copied.append(names[match])
        history.append(cohort)
    return copied, history, state


def test_one_client_is_copied_and_after_the_warm_up_always_the_same() -> None:
    copied, _, _ = play(Mimic(warm_up=5), 40)
    assert set(copied[5:]) == {2}  # the one at 2 (1, −1); the attackers' own rows at ±9 are nobody's to copy


def test_partial_knowledge_copies_one_of_their_own() -> None:
    copied, _, _ = play(Mimic("partial", warm_up=5), 20)
    assert len(set(copied[5:])) == 1
    assert copied[5] in (6, 7)


def test_the_next_client_is_copied_where_the_first_is_absent() -> None:
    away = [[0, 1, 3, 4, 5, 6, 7] if number % 2 else list(range(8)) for number in range(30)]
    copied, _, _ = play(Mimic(warm_up=10), 30, away)
    assert set(copied[10::2]) == {2}
    assert set(copied[11::2]) <= {0, 5}  # at −1 and 1
    assert len(set(copied[11::2])) == 1


def test_nothing_is_learned_after_the_warm_up() -> None:
    _, _, early = play(Mimic(warm_up=5), 5)
    _, _, late = play(Mimic(warm_up=5), 12)
    assert late.rounds == early.rounds == 5
    assert torch.equal(late.direction, early.direction)
    assert torch.equal(late.projections.rows, early.projections.rows)


def test_slow_twin() -> None:
    """The authors' recursion again in numpy, from the cohorts alone: z and each step are normalized."""
    _, history, state = play(Mimic(warm_up=6), 6)
    mean, z, sums = np.zeros(2), np.zeros(2), dict[int, list[float]]()
    for t, cohort in enumerate(history):
        rows = cohort.updates[~MALICIOUS, :2].numpy()
        mean = t / (1 + t) * mean + rows.mean(axis=0) / (1 + t)
        if t == 0:
            z = torch.randn(2, generator=generator(cohort.seed, "mimic"), dtype=torch.float64).numpy()
        step = sum((row - mean) @ z * (row - mean) for row in rows)
        step = step / np.linalg.norm(step)
        z = step if t == 0 else t / (1 + t) * z + step / (1 + t)
        z = z / np.linalg.norm(z)
        for client, row in enumerate(rows):
            sums.setdefault(client, []).append(float(row @ z))
    assert state.mean.numpy() == pytest.approx(mean)
    assert state.direction.numpy() == pytest.approx(z)
    assert state.projections.clients.tolist() == list(range(6))
    assert state.projections.rows[:, 0].tolist() == pytest.approx([sum(sums[client]) for client in range(6)])
    assert state.projections.rows[:, 1].tolist() == [6] * 6


def test_the_scale_of_a_round_does_not_matter_for_the_direction() -> None:
    """A second round ten times as long moves z exactly as one of usual length does."""
    rows = np.random.default_rng(3).normal(size=(2, 8, 2))
    found = []
    for scale in (1.0, 10.0):
        state: State = Mimic().init()
        for number, factor in enumerate((scale, scale)):
            _, state = Mimic().forge(cohort_of(factor * rows[number], seed=0), MALICIOUS, state)
        found.append(state.direction)
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_identical_updates_leave_the_direction_as_it_is() -> None:
    state: State = Mimic().init()
    same = cohort_of(torch.ones(8, 2, dtype=torch.float64), seed=0)
    for _ in range(2):
        _, state = Mimic().forge(same, MALICIOUS, state)
    start = torch.randn(2, generator=generator(0, "mimic"), dtype=torch.float64)
    torch.testing.assert_close(state.direction, start / start.norm())


def test_the_direction_is_where_clients_differ_most() -> None:
    """Against numpy's eigenvectors of what was seen."""
    _, history, state = play(Mimic(warm_up=30), 30)
    rows = np.concatenate([cohort.updates[~MALICIOUS, :2].numpy() for cohort in history])
    leading = np.linalg.eigh(np.cov(rows.T)).eigenvectors[:, -1]
    assert abs(float(state.direction.numpy() @ leading)) > 0.999


def test_the_memory_can_be_saved() -> None:
    attack = Mimic(warm_up=5)
    _, history, state = play(attack, 4)
    here, _ = attack.forge(history[0], MALICIOUS, state)
    there, _ = attack.forge(history[0], MALICIOUS, save_and_load(state, attack))  # type: ignore[arg-type]
    assert torch.equal(here, there)


def test_nobody_to_copy() -> None:
    rows = cohort_of([[1.0, 2.0], [3.0, 4.0]])
    nobody = torch.zeros(2, dtype=torch.bool)
    forged, _ = Mimic("partial").forge(rows, nobody, Mimic().init())
    assert torch.equal(forged, rows.updates)
    everybody, _ = Mimic().forge(rows, ~nobody, Mimic().init())
    assert any(torch.equal(everybody[0], row) for row in rows.updates)


def test_mistakes_are_named() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        Mimic("none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Mimic.warm_up must be at least 1, got 0"):
        Mimic(warm_up=0)
