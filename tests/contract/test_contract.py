"""Every part of the catalog keeps the contract, and the contract catches parts that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from cosdefense import Aggregator, Attack, ClientTable, Cohort, Defense, Filter, Judgment, Layout
from cosdefense.aggregators import (
    Bucketing,
    Bulyan,
    CenteredClipping,
    GeometricMedian,
    Mean,
    Median,
    NoisyMean,
    TrimmedMean,
)
from cosdefense.attacks import (
    ALIE,
    DBA,
    MPAF,
    ROP,
    AdapSim,
    Adaptive,
    Backdoor,
    Camouflage,
    ConstrainAndScale,
    EdgeCase,
    ExplicitBoosting,
    InnerProduct,
    KrumPoisoning,
    LabelFlip,
    LearnedPolicy,
    Mimic,
    MinMax,
    MinSum,
    Neurotoxin,
    Noise,
    NoiseCamouflage,
    OptimizedTrigger,
    Persistent,
    Planning,
    PoisonedFL,
    Rollback,
    SignFlip,
    Tailored,
    TrimmedMeanPoisoning,
    ZeroSumMasks,
)
from cosdefense.catalog.registry import AGGREGATORS, ATTACKS, FILTERS, PRESETS
from cosdefense.core import State
from cosdefense.filters import (
    FLAME,
    LASA,
    RFFL,
    AlignIns,
    ByGARS,
    ByGARSPlusPlus,
    Clip,
    CosDefense,
    DeepSight,
    DnC,
    FLDetector,
    FoolsGold,
    FreqFed,
    MedianClip,
    MultiKrum,
    MultiMetrics,
    PCAClusters,
    QuantileClip,
    Sageflow,
    SignGuard,
)
from cosdefense.testing.contract import check_aggregator, check_attack, check_defense, check_filter
from promises import ADDS_NOISE, LIMITS_STEPS, MAY_REJECT_IDENTICAL, SHORTER, SHORTER_ATTACKS

# Their checks take more than two thirds of a second.
LONG = (
    "alignins", "bygars", "deepsight", "diversefl", "fedrola", "flame", "freqfed", "lasa", "multi-metrics", "sageflow",
    "signguard",
)  # fmt: skip
LONG_AGGREGATORS = ("geometric-median", "rfa")


def slow(*parts: object) -> list[Any]:
    return [pytest.param(part, marks=pytest.mark.slow) for part in parts]


# Every class of the catalog with its defaults, and the options that change its behavior.
FILTER_CASES = [
    *(kind(**SHORTER.get(name, {})) for name, kind in FILTERS.items() if name not in LONG),
    *slow(
        *(FILTERS[name](**SHORTER.get(name, {})) for name in LONG),
        CosDefense(layer="features.weight"),
        CosDefense(threshold="mean+std", k=0.5),
        CosDefense(threshold="mad", k=3.0),
        Clip(max_norm=0.1),
        MedianClip(ratio=0.5, decay=0.0),
        QuantileClip(quantile=0.2, start=0.1, noise=0.5),
        DnC(contamination=0.2, iterations=3, coordinates=7, filter=1.5),
        DeepSight(samples=0, min_cluster_size=3, min_samples=3),
        FLDetector(window=1),
        FLAME("updates"),
        FLAME("head"),
        SignGuard("sim"),
        AlignIns(fraction=1.0, max_cosine=2.0, max_sign=0.5),
        FreqFed("updates"),
        LASA(sparsity=0.8, max_norm_deviation=0.5, max_sign_deviation=2.0, dense=True),
        MultiMetrics(share=1.0),
        SignGuard("dist", fraction=0.5, contiguous=False),
        MultiKrum(contamination=0.1),
        MultiKrum(contamination=0.0, keep=3),
        ByGARS(steps=1),
        ByGARSPlusPlus(rate=1.0, capacity=5),
        FoolsGold(head_only=False, capacity=5),
        PCAClusters(source=1),
        RFFL(warm_up=0, threshold=0.9),
        RFFL(start="average"),
        Sageflow(max_entropy=2.0, delta=5.0, wait_for_confident_model=False),
    ),
]
AGGREGATOR_CASES = [
    *(kind() for name, kind in AGGREGATORS.items() if name not in LONG_AGGREGATORS),
    *slow(
        *(AGGREGATORS[name]() for name in LONG_AGGREGATORS),
        TrimmedMean(0.1),
        TrimmedMean(0.0),
        NoisyMean(1.0, True),
        NoisyMean(1.0, relative=True),
        Bucketing(Defense((DnC(0.2),), Mean()), size=3),
        Bulyan(0.0),
        CenteredClipping(radius=1e9, steps=3),
        GeometricMedian(steps=3, smoothing=0.1),
    ),
]
ATTACK_CASES = [
    # LearnedPolicy needs a file: test_learned_policy.py.
    *(kind(**SHORTER_ATTACKS.get(name, {})) for name, kind in ATTACKS.items() if kind is not LearnedPolicy),
    *slow(
        InnerProduct(0.5),
        SignFlip(5.0),
        SignFlip(every_step=True),
        Noise(0.1, additive=True),
        LabelFlip(1, 7),
        Backdoor(target=3, fraction=1.0, size=8, scale=None),
        ExplicitBoosting(steps=1),
        KrumPoisoning(0.1, knowledge="partial", spread=0.01, min_fraction=0.1),  # a short search; the default's is long
        TrimmedMeanPoisoning(knowledge="partial"),
        ALIE(knowledge="partial"),
        ALIE(z=-1.5),
        MinMax("sign", "partial"),
        MinMax("std"),
        MinSum("sign", "partial", "min"),
        MinSum("std"),
        ALIE(min_z=1.5),
        Camouflage(1.0, "partial"),
        ConstrainAndScale(radius=0.01, scale=1.0, steps=2),
        DBA(part=2, scale=None),
        AdapSim("head-cosine", 0.5),
        AdapSim("model-cosine"),
        AdapSim("alignins"),
        EdgeCase(3, 0, 2, 1.0, None),
        OptimizedTrigger(size=3, offset=5, scale=None),
        Tailored(PRESETS["median"](), "sign", trials=2),
        Tailored(PRESETS["multi-krum"](), trials=3),
        MPAF(2.0, "first"),
        PoisonedFL(window=1),
        ROP(0.5, 180.0, 0.5, "sign"),
        ZeroSumMasks(Camouflage(), 0.1),
        ZeroSumMasks(Backdoor(target=3)),
        ExplicitBoosting(source=1, target=7),
        Neurotoxin(keep=0.5, radius=0.1),
        NoiseCamouflage(2.0, 0.0, "partial"),
        Rollback(0.5, "partial"),
        TrimmedMeanPoisoning(of="models"),
        Mimic("partial", warm_up=1),
        # Few trials: test_adaptive.py has every direction in every camouflage.
        Adaptive(PRESETS["cosdefense"](), trials=4),
        Adaptive(PRESETS["multi-krum"](), "partial", trials=3),
        Adaptive(PRESETS["bygars++"](), trials=3),
        Planning(PRESETS["bygars++"](), trials=6, horizon=2),
        Planning(PRESETS["median"](), trials=3),
        Persistent(PRESETS["factions"](), trials=3),
        Persistent(PRESETS["bygars++"](), trials=3, decay=0.0),
    ),
]


@pytest.mark.parametrize("part", FILTER_CASES, ids=repr)
def test_filters(part: Filter) -> None:
    check_filter(part, may_reject_identical=isinstance(part, MAY_REJECT_IDENTICAL))


@pytest.mark.parametrize("part", AGGREGATOR_CASES, ids=repr)
def test_aggregators(part: Aggregator) -> None:
    check_aggregator(part, adds_noise=isinstance(part, ADDS_NOISE), limits_steps=isinstance(part, LIMITS_STEPS))


@pytest.mark.parametrize("attack", ATTACK_CASES, ids=repr)
def test_attacks(attack: Attack) -> None:
    check_attack(attack)


# `check_filter` and `check_aggregator` check these defenses already.
SINGLE_PARTS = [Defense((kind(**SHORTER.get(name, {})),), Mean()) for name, kind in FILTERS.items()]
SINGLE_PARTS += [Defense((), kind()) for kind in AGGREGATORS.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, preset in PRESETS.items() if preset(**SHORTER.get(name, {})) not in SINGLE_PARTS]
)
def test_presets(name: str) -> None:
    check_defense(PRESETS[name](**SHORTER.get(name, {})))


@dataclass(frozen=True)
class Remembering(Filter):
    """A well-behaved stateful filter of a third party: counts how often it saw each client."""

    def init(self) -> ClientTable:
        return ClientTable.empty()

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        seen = state.lookup(cohort.clients, default=torch.zeros(len(cohort), 1)) + 1
        return Judgment(seen[:, 0], torch.ones_like(cohort.weights)), state.with_rows(cohort.clients, seen)


def test_third_party_filter_with_memory() -> None:
    check_filter(Remembering())


@dataclass(frozen=True)
class KeepsFirst(Filter):
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        return Judgment(cohort.weights, torch.arange(len(cohort)) < 1), state


@dataclass(frozen=True)
class Scribbles(Filter):
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        cohort.updates[0] = 0
        return Judgment(cohort.weights, cohort.weights), state


@dataclass(frozen=True)
class Forgets(Filter):
    def init(self) -> State:
        return {}

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        state["rounds"] = state.get("rounds", 0) + 1  # mutates what it was given
        return Judgment(cohort.weights * state["rounds"], cohort.weights), state


@dataclass(frozen=True)
class LooksElsewhere(Filter):
    """Names the head and reads everything."""

    def select_layers(self, layout: Layout) -> tuple[str, ...]:
        return (layout.find_layer(),)

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        norms = cohort.trainable().double().norm(dim=1)
        return Judgment(norms, norms <= norms.median()), state


@dataclass(frozen=True)
class SumsUp(Aggregator):
    def __call__(self, cohort: Cohort, state: State) -> tuple[torch.Tensor, State]:
        return cohort.updates.sum(dim=0), state


@dataclass(frozen=True)
class LowerMedian(Aggregator):
    """Not even wrong for odd n: kept to show that the contract alone does not replace pinned values."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[torch.Tensor, State]:
        return cohort.updates.median(dim=0).values, state


@dataclass(frozen=True)
class Narrows(Aggregator):
    def __call__(self, cohort: Cohort, state: State) -> tuple[torch.Tensor, State]:
        return cohort.updates.mean(dim=0).float(), state


@dataclass
class Thawed(Filter):
    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        return Judgment(cohort.weights, cohort.weights), state


@dataclass(frozen=True)
class WritesForged(Attack):
    def forge(self, cohort: Cohort, malicious: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        cohort.updates[malicious] *= -1
        return cohort.updates, state


@pytest.mark.parametrize(
    ("check", "part", "complaint"),
    [
        (check_filter, KeepsFirst(), "must not depend on the order"),
        (check_filter, Scribbles(), "must not write to its input"),
        (check_filter, Forgets(), "must not write to the state"),
        (check_filter, Thawed(), "frozen"),
        (check_filter, LooksElsewhere(), "must accept the same|must be the same"),
        (check_aggregator, SumsUp(), "identical clients"),
        (check_aggregator, Narrows(), "must stay torch.float64"),
        (check_attack, WritesForged(), "must not write"),
    ],
)
def test_the_contract_can_fail(check: Callable[[object], None], part: object, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(part)


def test_pinned_values_are_still_needed() -> None:
    check_aggregator(LowerMedian())
    even = Cohort.of(torch.tensor([[1.0], [2.0]]), torch.zeros(1), _one_number())
    assert LowerMedian()(even, None)[0] != Median()(even, None)[0]


def test_mean_counts_weights() -> None:
    cohort = Cohort.of(torch.tensor([[1.0], [5.0]]), torch.zeros(1), _one_number())
    assert Mean()(replace(cohort, weights=torch.tensor([3.0, 1.0])), None)[0].item() == 2.0


def _one_number() -> Layout:
    return Layout((("weight", (1,)),), "weight", 1)
