"""Tailored: the search by hand, against Multi-Krum itself, and the authors' two criteria."""

from __future__ import annotations

import pytest
import torch

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean, Median
from cosdefense.attacks import MinMax, Tailored
from cosdefense.catalog.registry import build_attack, describe
from doubles import weights_only
from shapes import unchecked

MALICIOUS = torch.arange(10) >= 7


def round_of(seed: int = 0) -> Cohort:
    rng = torch.Generator().manual_seed(seed)
    rows = 0.3 + torch.randn(10, 50, generator=rng, dtype=torch.float64)
    return Cohort.of(rows, torch.zeros(50, dtype=torch.float64), Layout((("w", (50,)),), "w", 50))


def forge(attack: Tailored, cohort: Cohort) -> torch.Tensor:
    return attack.forge(cohort, MALICIOUS, attack.init())[0]


def accepted(name: str, cohort: Cohort, rows: torch.Tensor) -> bool:
    sent = Cohort.of(torch.where(MALICIOUS[:, None], rows, cohort.updates), cohort.params, cohort.layout)
    return bool((get(name)(sent, get(name).init())[0].weights[MALICIOUS] != 0).all())


@pytest.mark.parametrize("name", ["multi-krum", "opposed-clusters"])
@pytest.mark.parametrize("direction", ["unit", "std"])
def test_the_defense_accepts_it_but_nothing_longer(name: str, direction: str) -> None:
    """A thousandth longer is rejected: 20 halvings resolve more than that."""
    cohort = round_of()
    rows = forge(Tailored(get(name), direction), cohort)  # type: ignore[arg-type]
    mean = cohort.updates[:7].mean(dim=0)
    moved = rows[8] - mean
    assert bool((rows[MALICIOUS] == rows[8]).all())
    assert float(moved @ mean) < 0
    assert accepted(name, cohort, rows)
    assert not accepted(name, cohort, (mean + 1.001 * moved).expand(10, 50))


def test_what_a_defense_never_accepts_is_not_sent() -> None:
    """A single client cannot be accepted by Krum, which needs three: it sends the mean of what it knows."""
    cohort = weights_only([[1.0], [3.0]])
    forged, _ = Tailored(get("krum")).forge(cohort, torch.tensor([False, True]), get("krum").init())
    assert float(forged[1]) == 1


def test_it_beats_min_max_against_multi_krum() -> None:
    """Who knows the rule goes farther than who only stays among the honest."""
    for seed in range(3):
        cohort = round_of(seed)
        mean = cohort.updates[:7].mean(dim=0)
        tailored = forge(Tailored(get("multi-krum")), cohort)[8]
        agnostic = MinMax().forge(cohort, MALICIOUS, None)[0][8]
        assert float(tailored @ mean) < float(agnostic @ mean)


def test_a_median_moves_only_so_far() -> None:
    """Without filters the result decides: the median stops moving once the forged rows are beyond the honest ones."""
    cohort = round_of()
    mean = cohort.updates[:7].mean(dim=0)

    def distance(rows: torch.Tensor) -> float:
        sent = Cohort.of(torch.where(MALICIOUS[:, None], rows, cohort.updates), cohort.params, cohort.layout)
        return float((Median()(sent, None)[0] - mean).norm())

    rows = forge(Tailored(Defense((), Median())), cohort)
    far = (mean + 100 * (rows[8] - mean)).expand(10, 50)
    assert distance(rows) > 0.9 * distance(far)
    assert distance(rows) > distance(mean.expand(10, 50))


def test_a_mean_lets_everything_through() -> None:
    """Rows 1 and −1 of one weight, and 0: the largest distance is 2, p is 0 as μ is. With μ = 1: γ → 2 · 4 · 2."""
    cohort = weights_only([[0.0], [2.0], [9.0]])
    forged, _ = Tailored(Defense((), Mean())).forge(cohort, torch.tensor([False, False, True]), None)
    assert float(forged[2]) == pytest.approx(1 - 16, rel=1e-5)
    still = weights_only([[-1.0], [1.0], [9.0]])
    assert float(Tailored().forge(still, torch.tensor([False, False, True]), None)[0][2]) == 0


def test_the_servers_defense_is_used_in_the_simulator() -> None:
    krum = get("krum")
    informed, state = Tailored().with_defense(krum, krum.init(), None)
    assert informed == Tailored(krum)
    assert state == krum.init()
    other = Tailored(get("median"))
    assert other.with_defense(krum, krum.init(), "own")[0] is other
    assert build_attack(describe(other)) == other
    assert build_attack({"name": "tailored", "defense": "krum"}) == Tailored(krum)
    with pytest.raises(ValueError, match=r"Tailored.trials must be at least 1, got 0"):
        Tailored(trials=0)
    with unchecked(), pytest.raises(ValueError, match=r"direction must be one of \('unit', 'sign', 'std'\), got 'up'"):
        Tailored(direction="up")  # type: ignore[arg-type]
