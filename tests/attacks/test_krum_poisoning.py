"""The attack on Krum against the paper's search, by hand and by a slow twin, with Krum itself as the reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Layout
from cosdefense.attacks import KrumPoisoning
from cosdefense.filters import Krum
from doubles import cohort_of
from shapes import unchecked

# Four honest clients round (1, 1), six away from it, and two attackers whose own rows must not matter.
ROUND = [[7.0, 1.0, 0.5], [-5.0, 1.0, 0.5], [1.0, 7.0, 0.5], [1.0, -5.0, 0.5], [99.0, 99.0, 99.0], [0.0, 0.0, 0.0]]
MALICIOUS = torch.tensor([False] * 4 + [True] * 2)


def wide(rows: Tensor, clients: list[int] | None = None, seed: int = 0) -> Cohort:
    d = rows.shape[1]
    names = None if clients is None else torch.tensor(clients)
    return Cohort.of(rows, torch.zeros(d, dtype=rows.dtype), Layout((("w", (d,)),), "w", d), names, seed=seed)


def picked(cohort: Cohort, rows: Tensor, contamination: float) -> list[int]:
    trial = Cohort.of(rows, cohort.params, cohort.layout)
    judgment, _ = Krum(contamination)(trial, None)
    return judgment.weights.nonzero().flatten().tolist()


def test_pinned_search() -> None:
    # n = 6, f = ⌊1.8⌋ = 1, three neighbours. Honest distances²: 72, 72, 144 to each other, 288 in sum. The bound:
    # √(288 / ((6 − 2 − 1) · 2)) + ‖(7, 1)‖ / √2 = √48 + 5 = 11.928. There the forged rows lie 2λ² − 8λ + 26 = 215
    # from (−5, 1) and (1, −5): 0 + 215 + 215 against 288, not picked. At half of it 49.4: 98.8 against
    # 49.4 + 49.4 + 72 of the nearest honest ones: picked.
    cohort = cohort_of(ROUND)
    forged, _ = KrumPoisoning().forge(cohort, MALICIOUS, None)
    length = (math.sqrt(48) + 5) / 2
    assert forged[MALICIOUS].flatten().tolist() == pytest.approx([-length] * 6)
    assert torch.equal(forged[~MALICIOUS], cohort.updates[~MALICIOUS])
    assert picked(cohort, forged, 0.3) == [4, 5]
    assert picked(cohort, torch.where(MALICIOUS[:, None], 2 * forged, forged), 0.3) == [0, 1, 2, 3]


def test_the_direction_is_against_every_coordinate() -> None:
    rows = torch.tensor(ROUND)
    rows[:4] *= torch.tensor([1.0, -1.0, -1.0])
    forged, _ = KrumPoisoning().forge(cohort_of(rows), MALICIOUS, None)
    assert forged[4].sign().tolist() == [-1, 1, 1]
    assert len(set(forged[4].abs().tolist())) == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_krum_selects_the_forged_row_but_not_one_twice_as_long(seed: int, knowledge: str) -> None:
    """The search must apply Krum to the forged rows, not to the honest ones."""
    rng = torch.Generator().manual_seed(seed)
    rows = 0.2 + torch.randn(12, 40, generator=rng).double()
    cohort, malicious = wide(rows), torch.arange(12) >= 8
    attack = KrumPoisoning(0.3, knowledge)  # type: ignore[arg-type]
    forged, _ = attack.forge(cohort, malicious, None)
    known = rows[~malicious] if knowledge == "full" else rows[malicious]
    length = float(forged[8].abs().max())
    assert length > attack.min_fraction
    assert bool((forged[malicious] == -length * known.mean(dim=0).sign()).all())
    # With partial knowledge they try it out on their own rows, with as few forged ones as it takes.
    chosen = False
    for count in [4] if knowledge == "full" else [1, 2, 3, 4]:
        at, beyond = (torch.cat([known, factor * forged[malicious][:count]]) for factor in (1, 2))
        chosen = min(picked(cohort, at, 0.3), default=0) >= len(known) if len(at) > 4 else False
        if chosen:
            assert min(picked(cohort, beyond, 0.3)) < len(known)
            break
    assert chosen
    if knowledge == "full":
        assert min(picked(cohort, forged, 0.3)) >= 8


def test_the_damage() -> None:
    """What Krum passes on points against the honest mean."""
    rng = torch.Generator().manual_seed(0)
    rows = 0.2 + torch.randn(12, 40, generator=rng).double()
    cohort, malicious = wide(rows), torch.arange(12) >= 8
    forged, _ = KrumPoisoning().forge(cohort, malicious, None)
    chosen = forged[picked(cohort, forged, 0.3)[0]]
    assert float(chosen @ rows[~malicious].mean(dim=0)) < 0


def test_buffers_have_no_influence() -> None:
    """Krum ignores them, so the search must too."""
    rows = torch.tensor(ROUND)
    rows[:4, 2] = torch.tensor([1000.0, 2000.0, -500.0, 7.0])
    forged, _ = KrumPoisoning().forge(cohort_of(rows), MALICIOUS, None)
    assert float(forged[4, 0]) == pytest.approx(-(math.sqrt(48) + 5) / 2)


def test_offsets_have_the_requested_size() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = 0.2 + torch.randn(12, 40, generator=rng).double()
    malicious = torch.arange(12) >= 8
    attack = KrumPoisoning(spread=0.01)
    forged, _ = attack.forge(wide(rows), malicious, None)
    length = float(forged[malicious].abs().mean())
    offsets = forged[malicious] + length * rows[~malicious].mean(dim=0).sign()
    assert bool((offsets.norm(dim=1) <= 0.011).all())  # the mean of |λ + offset| is λ only nearly
    assert len({tuple(row) for row in forged[malicious].tolist()}) == 4
    assert min(picked(wide(rows), forged, 0.3)) >= 8
    # By identity: the same client keeps the same distance wherever its row stands.
    swapped, _ = attack.forge(wide(rows, [*range(10), 11, 10]), malicious, None)
    assert torch.equal(swapped[10], forged[11])
    assert torch.equal(swapped[11], forged[10])
    later, _ = attack.forge(wide(rows, seed=1), malicious, None)
    assert not torch.equal(later[8], forged[8])


def test_the_search_stops_where_krum_selects_no_forged_row() -> None:
    # One attacker among tight honest clients far away has no supporter: even at λ → 0 it is the outlier.
    rows = torch.tensor([[10.0, 10.0], [10.1, 10.0], [10.0, 10.1], [10.1, 10.1], [0.0, 0.0]]).double()
    attack = KrumPoisoning(0.2)
    forged, _ = attack.forge(wide(rows), torch.arange(5) == 4, None)
    highest, _ = KrumPoisoning(0.2, min_fraction=1.0).forge(wide(rows), torch.arange(5) == 4, None)  # the bound alone
    assert 1e-5 < float(forged[4, 0] / highest[4, 0]) <= 2e-5


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_a_share_that_krum_cannot_work_with(knowledge: str) -> None:
    """4 of 10 need 11 updates. The attack is then as strong as for the 3 that Krum can work with, not nearly zero."""
    rng = torch.Generator().manual_seed(1)
    rows = 0.2 + torch.randn(10, 40, generator=rng).double()
    malicious = torch.arange(10) >= 6
    forged, _ = KrumPoisoning(0.4, knowledge).forge(wide(rows), malicious, None)  # type: ignore[arg-type]
    assert float(forged[malicious].norm(dim=1).min()) > 0.05 * float(rows.norm(dim=1).median())
    if knowledge == "full":
        feasible, _ = KrumPoisoning(0.3).forge(wide(rows), malicious, None)
        assert torch.equal(forged, feasible)
        assert min(picked(wide(rows), forged, 0.3)) >= 6


def test_the_size_of_the_updates_does_not_matter() -> None:
    rng = torch.Generator().manual_seed(3)
    rows = 0.2 + torch.randn(12, 40, generator=rng).double()
    malicious = torch.arange(12) >= 8
    forged, tiny = (KrumPoisoning().forge(wide(scale * rows), malicious, None)[0] for scale in (1.0, 2.0**-30))
    assert torch.equal(tiny[malicious], forged[malicious] * 2.0**-30)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_for_krum(n: int) -> None:
    """In a round that Krum would skip, the attack still returns finite updates."""
    rows = torch.ones(n, 2, dtype=torch.float64)
    for malicious in (torch.arange(n) == 0, torch.ones(n, dtype=torch.bool)):
        for knowledge in ("full", "partial"):
            forged, _ = KrumPoisoning(knowledge=knowledge).forge(wide(rows), malicious, None)
            assert bool(forged.isfinite().all())
    nobody, _ = KrumPoisoning().forge(wide(rows), torch.zeros(n, dtype=torch.bool), None)
    assert torch.equal(nobody, rows)


whole = st.integers(-12, 15).map(float)


@given(
    st.lists(st.lists(whole, min_size=2, max_size=2), min_size=2, max_size=8),
    st.lists(st.lists(whole, min_size=2, max_size=2), min_size=1, max_size=4),
    st.sampled_from([0.1, 0.3, 0.4]),
    st.sampled_from(["full", "partial"]),
)
def test_slow_twin(honest: list[list[float]], own: list[list[float]], contamination: float, knowledge: str) -> None:
    """The paper's search in plain Python, with Krum written out. (Where a choice hangs on rounding, none is made.)"""
    expected = slow_search(honest if knowledge == "full" else own, len(own), contamination, knowledge)
    if expected is None:
        return
    malicious = torch.arange(len(honest) + len(own)) >= len(honest)
    attack = KrumPoisoning(contamination, knowledge)  # type: ignore[arg-type]
    forged, _ = attack.forge(cohort_of([*honest, *own]), malicious, None)
    for row in forged[malicious].tolist():
        assert row[:2] == pytest.approx(expected, rel=1e-12, abs=1e-300)


def slow_search(known: list[list[float]], m: int, contamination: float, knowledge: str) -> list[float] | None:
    n, f = len(known) + m, slow_f(len(known) + m, contamination)
    signs = [float((total > 0) - (total < 0)) for total in (sum(row[k] for row in known) for k in range(2))]
    bound = max(math.hypot(*row) for row in known) / math.sqrt(2)
    if len(known) > 1:
        sums = [
            sum(sorted(math.dist(a, b) ** 2 for j, b in enumerate(known) if j != i)[: max(1, n - f - 2)])
            for i, a in enumerate(known)
        ]
        bound += math.sqrt(min(sums) / (max(1, n - 2 * f - 1) * 2))
    length = bound
    for count in [m] if knowledge == "full" else range(1, m + 1):
        length = 2 * bound
        while length / 2 > 1e-5 * bound or length > bound:
            length /= 2
            answer = slow_krum_prefers(known, [[-length * sign for sign in signs]] * count, contamination)
            if answer is None:
                return None
            if answer:
                return [-length * sign for sign in signs]
    return [-length * sign for sign in signs]


def slow_f(n: int, contamination: float) -> int:
    """The assumed number of attackers, reduced until Krum can work with n updates."""
    f = math.floor(contamination * n + 1e-9)
    while f > 0 and n <= 2 * f + 2:
        f -= 1
    return f


def slow_krum_prefers(known: list[list[float]], forged: list[list[float]], contamination: float) -> bool | None:
    """Whether Krum picks forged rows only; None where rounding decides."""
    rows = known + forged
    n, f = len(rows), slow_f(len(rows), contamination)
    if n <= 2:
        return False
    scores = [
        math.fsum(sorted(math.dist(a, b) ** 2 for j, b in enumerate(rows) if j != i)[: n - f - 2])
        for i, a in enumerate(rows)
    ]
    honest, best = min(scores[: len(known)]), min(scores[len(known) :])
    if abs(honest - best) <= 1e-9 * (1 + honest):
        return None
    return best < honest


def test_mistakes_are_named() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        KrumPoisoning(knowledge="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Krum.contamination must be in \[0, 0.5\), got 0.5"):
        KrumPoisoning(contamination=0.5)
    with pytest.raises(ValueError, match=r"KrumPoisoning.spread must be at least 0 and finite, got -1.0"):
        KrumPoisoning(spread=-1.0)
    with pytest.raises(ValueError, match=r"KrumPoisoning.min_fraction must be positive and finite, got 0.0"):
        KrumPoisoning(min_fraction=0.0)
