"""Opposed clusters on updates that no server sees: twin, open defense, files, simulator, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from secure_examples import THOROUGH
from test_secure_defense import check_same, draw_cohort
from torch import Tensor

from cosdefense import Cohort, Defense, Layout, get
from cosdefense.aggregators import Mean, Median
from cosdefense.attacks import PoisonedBuffers
from cosdefense.catalog.registry import build_defense, describe
from cosdefense.core import Judgment, Similarities, SimilarityFilter, State, pack, unpack
from cosdefense.filters import Clip, CosDefense, Krum, NearDuplicates, NormLimit, OpposedClusters
from cosdefense.ops import cosine, cosines
from cosdefense.secure import Secure
from cosdefense.secure.comparing_leader import Compared
from cosdefense.secure.comparing_rule import ComparingRule, OpenedSimilarities
from cosdefense.secure.projection import SIZE
from cosdefense.testing import LAYOUT, check_defense

WIDE = Layout((("body.weight", (40, 300)), ("head.weight", (10, 40))), "head.weight", 12_400)
OTHERS = (
    Defense((Clip(1.0), OpposedClusters()), Mean()),
    Defense((NearDuplicates(), OpposedClusters(0.1)), Mean()),
    Defense((NormLimit(), NormLimit(1.5)), Mean()),
)


def draw_attacked(seed: int, malicious: int = 3, n: int = 10, cosine: float = 0.05) -> Cohort:
    """Honest updates with this cosine between any two, and malicious clients that all send their reversed mean."""
    rng = torch.Generator().manual_seed(seed)
    shared = torch.randn(WIDE.size, generator=rng)
    rows = (1 - cosine) ** 0.5 * torch.randn(n, WIDE.size, generator=rng) + cosine**0.5 * shared
    rows *= 0.001 * (1 + 0.15 * torch.randn(n, 1, generator=rng))
    mean = rows[malicious:].mean(dim=0)
    rows[:malicious] = -mean * rows[malicious:].norm(dim=1).mean() / mean.norm()
    return Cohort.of(rows, torch.randn(WIDE.size, generator=rng), WIDE, seed=seed)


@pytest.mark.parametrize("defense", [get("opposed-clusters"), *OTHERS])
def test_the_twin_decides_the_same_bits(defense: Defense) -> None:
    secure, opened = Secure(defense), 0
    assert secure.compares
    state: State = secure.init()
    twin_state: State = secure.plain.init()
    for seed, cohort in enumerate((draw_cohort(0), draw_cohort(1, scale=100.0), draw_attacked(2), draw_cohort(3))):
        verdict, state = secure(cohort, state)
        twin, twin_state = secure.plain(cohort, twin_state)
        check_same(verdict, twin)
        assert state == twin_state
        opened += verdict.skipped is None
        packed, tensors = pack(state)
        assert unpack(packed, tensors, secure.init()) == state
        if seed == 2:
            state, twin_state = secure.init(), secure.plain.init()
    assert opened >= 3


@pytest.mark.parametrize("scale", [1e-3, 0.1, 100.0])
def test_small_models_are_judged_as_in_the_open(scale: float) -> None:
    """Up to 4,096 trainable coordinates nothing is projected: cosines and norms are those of the encoded updates."""
    layout = Layout(LAYOUT.shapes[:3], LAYOUT.head, 27)
    secure, defense = Secure(get("opposed-clusters"), clip=5 * scale, smallest=3).plain, get("opposed-clusters")
    state, open_state = secure.init(), defense.init()
    for seed in range(20):
        cohort = draw_cohort(seed, scale=scale, layout=layout)
        expected, open_state = defense(cohort, open_state)
        verdict, state = secure(cohort, state)
        assert verdict.skipped is None
        assert torch.allclose(verdict.weights, expected.weights, atol=2.0**-16)
        assert verdict.evidence.keys() == expected.evidence.keys()
        for name, scores in verdict.evidence.items():
            exact = expected.evidence[name].double()
            assert torch.allclose(scores.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True), name
        assert torch.allclose(verdict.update, expected.update, rtol=1e-3, atol=scale * 2.0**-14)
        assert state[:2] == pytest.approx(open_state[:2], rel=1e-5)


def test_large_models_are_judged_by_their_projections() -> None:
    """Malicious clients that reverse the mean are rejected as in the open; norms and cosines are a few percent off."""
    secure, defense = Secure(get("opposed-clusters")).plain, get("opposed-clusters")
    state, open_state, errors = secure.init(), defense.init(), []
    for seed in range(200 if THOROUGH else 30):
        cohort = draw_attacked(seed)
        expected, open_state = defense(cohort, open_state)
        verdict, state = secure(cohort, state)
        assert (verdict.weights > 0).tolist() == (expected.weights > 0).tolist() == [False] * 3 + [True] * 7
        ratios = verdict.evidence["NormLimit"] / expected.evidence["NormLimit"] - 1
        errors += ratios.tolist()
        angle = cosine(verdict.update[None], expected.update)
        assert float(angle) > 0.995
    assert np.std(errors) == pytest.approx(1 / np.sqrt(2 * SIZE), rel=0.25)
    assert abs(np.mean(errors)) < 0.003


def test_the_leader_sees_norms_and_cosines_of_the_updates() -> None:
    """Against exact ones, computed without this package's secure folder."""
    seen = list[OpenedSimilarities]()

    class Watching(SimilarityFilter):
        def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
            assert isinstance(similarities, OpenedSimilarities)
            seen.append(similarities)
            return Judgment(similarities.norms(), torch.ones(len(weights))), state

    small, large = draw_cohort(1), draw_attacked(2)
    for cohort, tolerance in ((small, 1e-6), (large, 5 / 64)):
        secure = Secure(Defense((Watching(),), Mean()))
        secure(cohort, secure.init())
        rows = cohort.trainable()
        assert torch.allclose(seen[-1].cosines(), cosines(rows), atol=tolerance)
        assert torch.allclose(seen[-1].norms().float(), rows.norm(dim=1), rtol=tolerance)


@dataclass(frozen=True)
class Following(SimilarityFilter):
    """Accepts updates whose cosine with the mean of the updates before is positive. It remembers the last model."""

    def list_references(self, params: Tensor, state: State) -> tuple[Tensor, ...]:
        return () if state is None else ((params - state)[:12_400],)

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        references = self.list_references(similarities.params, state)
        if not references:
            return Judgment(torch.zeros(len(weights)), torch.ones(len(weights))), similarities.params
        found = similarities.cosines_with(references[0])
        return Judgment(-found, found > 0), similarities.params


def test_updates_are_compared_with_public_vectors() -> None:
    secure = Secure(Defense((Following(),), Mean()))
    cohort = draw_attacked(0, cosine=0.3)
    verdict, state = secure(cohort, secure.init())
    assert verdict.weights.tolist() == [1.0] * 10
    later = replace(draw_attacked(0, cosine=0.3), params=cohort.params + cohort.updates[3:].mean(dim=0), seed=5)
    verdict, after = secure(later, state)
    twin, twin_after = secure.plain(later, state)
    check_same(verdict, twin)
    assert torch.equal(after[0], twin_after[0])
    assert verdict.weights.tolist() == [0.0] * 3 + [1.0] * 7
    exact = cosine(later.updates, later.params - cohort.params)
    assert torch.allclose(-verdict.evidence["Following"], exact, atol=5 / 64)
    opened = Defense((Following(),), Mean())(later, (state[0], None))[0]
    assert torch.equal(opened.weights, verdict.weights)


def test_filters_may_ask_for_their_own_references_only() -> None:
    rule = ComparingRule((Following(),), (torch.zeros(WIDE.size),), torch.ones(WIDE.size))
    products = Compared(np.eye(3, dtype=np.int64), np.zeros((3, 1), np.int64), [1])
    secure = Secure(Defense((Following(),), Mean()))
    terms = secure.terms(secure.get_parts(WIDE), rule.params, 3, None, references=1)
    found = OpenedSimilarities.of(rule.params, products, rule.references, terms)
    assert found.cosines_with(torch.ones(12_400)).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="list_references"):
        found.cosines_with(torch.zeros(12_400))


@dataclass(frozen=True)
class Lengthening(SimilarityFilter):
    """Doubles the first update and gives the last five votes."""

    def judge(self, similarities: Similarities, weights: Tensor, state: State) -> tuple[Judgment, State]:
        n, norms = len(weights), similarities.norms()
        votes, factors = torch.ones(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
        votes[-1], factors[0] = 5.0, 2.0
        return Judgment(norms, votes, factors=factors), state


def test_weights_and_factors_above_one() -> None:
    layout = Layout(LAYOUT.shapes[:3], LAYOUT.head, 27)
    cohort = draw_cohort(4, n=20, layout=layout)
    defense = Defense((Lengthening(),), Mean())
    secure = Secure(defense, smallest=4)
    verdict, _ = secure(cohort, secure.init())
    expected, _ = defense(cohort, defense.init())
    assert verdict.skipped is None
    assert torch.allclose(verdict.update, expected.update, atol=1e-5)
    assert torch.allclose(5 * verdict.weights, expected.weights, atol=1e-3)


def test_zero_updates_have_no_cosine() -> None:
    cohort = draw_cohort(2)
    updates = cohort.updates.clone()
    updates[:2] = 0
    secure = Secure(get("opposed-clusters"), smallest=3)
    verdict, _ = secure(replace(cohort, updates=updates), secure.init())
    twin, _ = secure.plain(replace(cohort, updates=updates), secure.init())
    check_same(verdict, twin)
    assert verdict.skipped is None
    assert bool(verdict.update.isfinite().all())
    assert verdict.evidence["NormLimit"][:2].tolist() == [0, 0]


@pytest.mark.slow
def test_the_contract_of_defenses_holds() -> None:
    check_defense(Secure(get("opposed-clusters"), smallest=3).plain)


def test_rows_that_are_not_finite_are_rejected() -> None:
    cohort = draw_cohort(1)
    updates = cohort.updates.clone()
    updates[2, 3] = torch.nan
    secure = Secure(get("opposed-clusters"))
    verdict, _ = secure(replace(cohort, updates=updates), secure.init())
    assert float(verdict.weights[2]) == 0
    assert bool(verdict.evidence["OpposedClusters"][2].isnan())
    assert bool(verdict.update.isfinite().all())


def test_long_updates_are_clipped_by_clients_and_rejected_by_the_rule() -> None:
    """A running median norm of 0.5: clients send at most 16 of them, and the rule rejects beyond two."""
    secure = Secure(get("opposed-clusters"))
    cohort = draw_cohort(3)
    updates = cohort.updates.clone()
    updates[0] *= 1e6
    state = (0.5, None, None, None)
    verdict, after = secure(replace(cohort, updates=updates), state)
    assert float(verdict.weights[0]) == 0
    assert float(verdict.evidence["NormLimit"][0]) == pytest.approx(8.0, rel=1e-5)
    assert after[0] < 1.0


def test_rounds_that_must_stay_secret_are_skipped_and_remember_nothing() -> None:
    secure = Secure(get("opposed-clusters"), smallest=8)
    cohort = draw_attacked(1)
    _, verdict, state = secure.run_round(cohort, secure.init())
    assert verdict.skipped == "7 clients were accepted, and sums of fewer than 8 stay secret"
    assert state == secure.init()
    assert not verdict.weights.any()
    assert not verdict.update.any()
    assert not bool(verdict.evidence["NormLimit"].isnan().any())  # norms and cosines are opened all the same
    _, twin, twin_state = secure.plain.run_round(cohort, secure.init())
    check_same(verdict, twin)
    assert twin_state == state
    few = Cohort.of(cohort.updates[:2], cohort.params, WIDE)
    _, verdict, _ = secure.run_round(few, secure.init())
    assert verdict.skipped == "Secure opens sums of at least 8 clients, got 2 clients"
    broken = cohort.updates.clone()
    broken[:3] = torch.nan
    for defense in (secure, secure.plain):
        verdict, _ = defense(replace(cohort, updates=broken), defense.init())
        assert verdict.skipped == "7 valid reports, and the quorum is 8"


@pytest.mark.parametrize(
    ("defense", "options", "needed"),
    [
        (Defense((OpposedClusters(), Krum(0.2)), Mean()), {}, "norms and cosines alone, got OpposedClusters, Krum"),
        (Defense((NormLimit(), CosDefense(), OpposedClusters()), Mean()), {}, "got NormLimit, CosDefense, Opposed"),
        (Defense((OpposedClusters(), Clip(1.0)), Mean()), {}, "got OpposedClusters, Clip"),
        (Defense((OpposedClusters(),), Median()), {}, "others compare updates"),
        (get("opposed-clusters"), {"clip": None}, "must not be None"),
        (Defense((OpposedClusters(),), Mean()), {"clip": None}, "must not be None"),
    ],
)
def test_what_secure_refuses(defense: Defense, options: dict[str, Any], needed: str) -> None:
    with pytest.raises(ValueError, match=needed):
        Secure(defense, **options)


def test_files_name_it_and_describe_gives_it_back() -> None:
    for table in (
        {"name": "opposed-clusters", "secure": True},
        {"name": "opposed-clusters", "max_ratio": 3.0, "secure": "plain"},
        {"filters": [{"name": "clip", "max_norm": 2.0}, {"name": "opposed-clusters"}], "secure": {"colluders": 0.3}},
    ):
        secure = build_defense(table)
        assert isinstance(secure, Secure)
        assert secure.compares
        assert build_defense(describe(secure)) == secure
    assert not Secure(get("cosdefense")).compares


def test_poisoned_buffers_stay_within_the_bounds() -> None:
    secure, params = Secure(get("opposed-clusters"), smallest=3), draw_cohort(0).params
    cohort = replace(draw_cohort(0, n=10, scale=0.01), params=params)
    forged, _ = PoisonedBuffers(1e6, -20.0).forge(cohort, torch.arange(10) < 3, None)
    updates = torch.where(torch.arange(10)[:, None] < 3, forged, cohort.updates)
    verdict, _ = secure(replace(cohort, updates=updates), secure.init())
    assert verdict.skipped is None
    change, buffers = verdict.update[27:], params[27:]
    assert float(change.abs().max()) <= 2 * max(float(buffers.abs().max()), 1.0)
    assert bool((buffers[4:] + change[4:] >= 0.0999 * buffers[4:]).all())
