"""AdapSim: the card's example, the other scores, the feedback, and that the scores really look honest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cosdefense import Cohort, Layout, get
from cosdefense.attacks import AdapSim
from cosdefense.attacks.adap_sim import AdapSimState, _select_largest
from doubles import save_and_load, slow_cosine, weights_only

HONEST = [[1.0, 0.2, 0.1], [0.9, -0.1, 0.2], [1.1, 0.1, -0.1]]
MALICIOUS = torch.tensor([False, False, False, True])


def test_pinned_example() -> None:
    """The smallest honest cosine is 0.933404. Halving from 16: γ = 0.125 on all coordinates, 0.5 on the top third."""
    cohort = weights_only([*HONEST, [9.0, 9.0, 9.0]])
    assert min(slow_cosine(a, b) for a in HONEST for b in HONEST) == pytest.approx(0.933404, abs=1e-6)
    everywhere, state = AdapSim().forge(cohort, MALICIOUS, AdapSim().init())
    assert everywhere[3].tolist() == pytest.approx([0.875, -0.058333, -0.058333], abs=1e-6)
    top, state = AdapSim(share=1 / 3).forge(cohort, MALICIOUS, AdapSim(share=1 / 3).init())
    assert top[3].tolist() == pytest.approx([0.5, 0.066667, 0.066667], abs=1e-6)
    assert state.perturbation.tolist() == pytest.approx([0.5, 0, 0])


def test_the_share_follows_the_effect() -> None:
    """The model moves along (1, 0, 0): with what was sent there, and later against it."""
    attack = AdapSim(share=0.5)
    start = torch.zeros(3, dtype=torch.float64)
    for moved, share in ((1.0, 0.6), (-1.0, 0.4)):
        state = AdapSimState(0.5, start, torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
        cohort = Cohort.of(
            torch.tensor([*HONEST, [9.0] * 3], dtype=torch.float64),
            torch.tensor([moved, -7.0, 7.0], dtype=torch.float64),
            weights_only(HONEST).layout,
        )
        _, after = attack.forge(cohort, MALICIOUS, save_and_load(state, attack))  # type: ignore[arg-type]
        assert after.share == pytest.approx(share)
    high = AdapSimState(0.95, start, torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    same = Cohort.of(cohort.updates, torch.tensor([1.0, 0, 0], dtype=torch.float64), cohort.layout)
    assert attack.forge(same, MALICIOUS, high)[1].share == 0.99


def test_the_largest_of_every_tensor() -> None:
    layout = Layout((("a", (2,)), ("b", (3,))), "a", 5)
    cohort = Cohort.of(torch.zeros(1, 5), torch.zeros(5), layout)
    mean = torch.tensor([1.0, -5.0, 0.1, 0.3, -0.2])
    assert _select_largest(mean, 0.5, cohort).tolist() == [0, -1, 0, 1, -1]
    assert _select_largest(mean, 0.01, cohort).tolist() == [0, -1, 0, 1, 0]


def layered(seed: int) -> Cohort:
    rng = torch.Generator().manual_seed(seed)
    layout = Layout((("body.weight", (20,)), ("head.weight", (4, 5))), "head.weight", 40)
    rows = 0.3 + torch.randn(10, 40, generator=rng, dtype=torch.float64)
    return Cohort.of(rows, torch.randn(40, generator=rng, dtype=torch.float64), layout)


@settings(max_examples=20)
@given(st.integers(0, 200))
def test_what_is_sent_looks_honest(seed: int) -> None:
    """By each score, in plain Python; and it never goes farther along the honest mean than the mean does."""
    cohort, malicious = layered(seed), torch.arange(10) >= 7
    honest, params = cohort.updates[:7].tolist(), cohort.params.tolist()
    mean = cohort.updates[:7].mean(dim=0)

    def row(score: str) -> list[float]:
        attack = AdapSim(score)  # type: ignore[arg-type]
        forged, _ = attack.forge(cohort, malicious, attack.init())
        assert float(forged[8] @ mean) <= float(mean @ mean) + 1e-9
        found: list[float] = forged[8].tolist()
        return found

    smallest = min(slow_cosine(a, b) for a in honest for b in honest)
    assert min(slow_cosine(row("pairwise-cosine"), b) for b in honest) >= smallest - 1e-9
    head = max(abs(slow_cosine(a[20:], params[20:])) for a in honest)
    assert abs(slow_cosine(row("head-cosine")[20:], params[20:])) <= head + 1e-9
    whole = [slow_cosine(a, params) for a in honest]
    sent = row("model-cosine")
    if sent != pytest.approx(mean.tolist()):  # that is sent where the mean itself stands out
        assert min(whole) - 1e-9 <= slow_cosine(sent, params) <= max(whole) + 1e-9
    sent, shares = row("alignins"), [slow_sign_share(a, honest) for a in honest]
    if sent != pytest.approx(mean.tolist()):
        assert min(whole) - 1e-9 <= slow_cosine(sent, params) <= max(whole) + 1e-9
        assert min(shares) - 1e-9 <= slow_sign_share(sent, honest) <= max(shares) + 1e-9


def slow_sign_share(row: list[float], voters: list[list[float]]) -> float:
    """How many of the twelve largest of forty coordinates have the sign of most voters; no two are equal."""
    majority = [sum((x > 0) - (x < 0) for x in column) for column in zip(*voters, strict=True)]
    largest = sorted(range(len(row)), key=lambda j: -abs(row[j]))[:12]
    agreeing = [j for j in largest if row[j] * majority[j] > 0]
    return len(agreeing) / 12


def test_alignins_sees_nothing_unusual() -> None:
    """Tailored to both scores of AlignIns, the update deviates from the median no more than some honest one."""
    cohort, malicious = layered(3), torch.arange(10) >= 7
    attack = AdapSim("alignins")
    forged, _ = attack.forge(cohort, malicious, attack.init())
    mean = cohort.updates[:7].mean(dim=0)
    assert float(forged[8] @ mean) < float(mean @ mean) - 1e-3
    sent = Cohort.of(torch.where(malicious[:, None], forged, cohort.updates), cohort.params, cohort.layout)
    (scores,) = get("alignins")(sent, get("alignins").init())[0].evidence.values()
    assert float(scores[malicious].max()) <= float(scores[~malicious].max()) + 1e-9


def test_cosdefense_accepts_what_its_own_score_allows() -> None:
    """Tailored to the score of CosDefense, the update is as little suspicious as the most suspicious honest one, and
    it points against the honest mean."""
    cohort, malicious = layered(3), torch.arange(10) >= 7
    attack = AdapSim("head-cosine")
    forged, _ = attack.forge(cohort, malicious, attack.init())
    sent = Cohort.of(torch.where(malicious[:, None], forged, cohort.updates), cohort.params, cohort.layout)
    (scores,) = get("cosdefense")(sent, get("cosdefense").init())[0].evidence.values()
    assert float(scores[malicious].max()) <= float(scores[~malicious].max()) + 1e-9
    assert float(forged[8] @ cohort.updates[:7].mean(dim=0)) < 0


def test_mistakes_are_named() -> None:
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"AdapSim.share must be from 0.01 to 0.99, got {share}"):
            AdapSim(share=share)
