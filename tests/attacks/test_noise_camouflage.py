"""Noise camouflage: the documented norms and cosines, a slow twin, and what it does to a plain mean."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cosdefense import Cohort, Layout
from cosdefense.attacks import NoiseCamouflage
from cosdefense.core import generator
from doubles import slow_dot, weights_only
from shapes import unchecked

MALICIOUS = torch.arange(10) >= 7


def round_of(d: int = 4000, clients: list[int] | None = None, seed: int = 0) -> Cohort:
    rows = 0.1 + torch.randn(10, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = None if clients is None else torch.tensor(clients)
    return Cohort.of(rows, torch.zeros(d, dtype=torch.float64), Layout((("w", (d,)),), "w", d), names, seed=seed)


def cosines(rows: Tensor) -> Tensor:
    units: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return units @ units.T


@pytest.mark.parametrize(("strength", "length", "cosine"), [(1.0, 0.986, 0.257), (2.0, 1.312, 0.581)])
def test_documented_norms_and_cosines(strength: float, length: float, cosine: float) -> None:
    """√(s² / 4 + 0.85²) norms, and (s² / 4) / (s² / 4 + 0.85²) between two of them: 0.26 and 0.58."""
    cohort = round_of()
    forged, _ = NoiseCamouflage(strength).forge(cohort, MALICIOUS, None)
    median = float(cohort.updates[:7].norm(dim=1).median())
    assert (forged[MALICIOUS].norm(dim=1) / median).tolist() == pytest.approx([length] * 3, abs=0.02)
    between = cosines(forged[MALICIOUS])[torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)]
    assert between.tolist() == pytest.approx([cosine] * 3, abs=0.05)
    mean = cohort.updates[:7].mean(dim=0)
    along = (forged[MALICIOUS] @ (mean / mean.norm()) / median).tolist()
    assert along == pytest.approx([-strength / 2] * 3, abs=0.05)


def test_slow_twin() -> None:
    rows = [[3.0, 4.0], [6.0, 8.0], [0.0, 1.0], [9.0, 9.0], [7.0, -7.0]]
    cohort = weights_only(rows)
    malicious = torch.arange(5) >= 3
    forged, _ = NoiseCamouflage(1.5, 0.5).forge(cohort, malicious, None)
    mean = [3.0, 13 / 3]  # of three honest rows, of norms 5, 10 and 1: L = 5
    for client in (3, 4):
        drawn = torch.randn(2, generator=generator(0, "noise camouflage", client), dtype=torch.float64).tolist()
        for k in range(2):
            expected = -1.5 * 2.5 * mean[k] / math.hypot(*mean) + 0.5 * 5 * drawn[k] / math.hypot(*drawn)
            assert float(forged[client, k]) == pytest.approx(expected)
    honest, _ = NoiseCamouflage(1.5, 0.0).forge(cohort, malicious, None)
    assert slow_dot(honest[3].tolist(), mean) < 0
    assert torch.equal(honest[3], honest[4])  # without noise they are near-duplicates


def test_the_noise_belongs_to_the_client_and_to_the_round() -> None:
    here, _ = NoiseCamouflage().forge(round_of(), MALICIOUS, None)
    there, _ = NoiseCamouflage().forge(round_of(clients=[*range(8), 9, 8]), MALICIOUS, None)
    assert torch.equal(here[8], there[9])
    later, _ = NoiseCamouflage().forge(round_of(seed=1), MALICIOUS, None)
    assert not torch.allclose(here[8], later[8])


def test_partial_knowledge_and_nobody() -> None:
    cohort = round_of(20)
    own, _ = NoiseCamouflage(2.0, 0.0, "partial").forge(cohort, MALICIOUS, None)
    mean, length = cohort.updates[7:].mean(dim=0), cohort.updates[7:].norm(dim=1).median()
    torch.testing.assert_close(own[7], -length * mean / mean.norm())
    nobody = torch.zeros(10, dtype=torch.bool)
    assert NoiseCamouflage().forge(cohort, nobody, None)[0] is cohort.updates


def test_buffers_are_those_of_the_known_mean() -> None:
    layout = Layout((("w", (2,)), ("norm.running_mean", (1,))), "w", 2)
    rows = torch.tensor([[1.0, 0.0, 4.0], [0.0, 1.0, 8.0], [5.0, 5.0, 99.0]])
    cohort = Cohort.of(rows, torch.zeros(3), layout)
    forged, _ = NoiseCamouflage().forge(cohort, torch.tensor([False, False, True]), None)
    assert float(forged[2, 2]) == 6.0


def test_it_turns_a_plain_mean_around_within_the_length_of_honest_updates() -> None:
    """Three of ten, none longer than 1.4 honest norms."""
    cohort = round_of()
    forged, _ = NoiseCamouflage(2.0).forge(cohort, MALICIOUS, None)
    mean = cohort.updates[:7].mean(dim=0)
    sent = torch.where(MALICIOUS[:, None], forged, cohort.updates)
    assert float(sent.mean(dim=0) @ mean) < 0
    assert float(forged[MALICIOUS].norm(dim=1).max()) < 1.4 * float(cohort.updates[:7].norm(dim=1).median())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"NoiseCamouflage.strength must be positive and finite, got 0.0"):
        NoiseCamouflage(0.0)
    with pytest.raises(ValueError, match=r"NoiseCamouflage.noise must be at least 0 and finite, got -1.0"):
        NoiseCamouflage(noise=-1.0)
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        NoiseCamouflage(knowledge="none")  # type: ignore[arg-type]
