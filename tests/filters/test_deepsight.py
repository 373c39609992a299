"""DeepSight against its definition: what clients trained, what their models answer, whose clusters are rejected."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cosdefense import Cohort, Layout, MissingTrustedData, Need, TrustedData, get
from cosdefense.filters import DeepSight
from cosdefense.filters.deepsight import energy_shares, find_bias, is_suspicious, prediction_ratios
from doubles import slow_cosine
from slow_clusters import slow_density_clusters

LAYOUT = Layout((("head.weight", (3, 2)), ("head.bias", (3,))), "head.weight", 9)


@dataclass(frozen=True)
class Linear(TrustedData):
    """A linear model of two pixels."""

    def predict_random(self, params: Tensor, updates: Tensor, n: int, seed: int) -> Tensor:
        pixels = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)).to(params)
        models = torch.stack([params, *(params + update for update in updates)])
        return torch.stack([pixels @ model[:6].view(3, 2).T + model[6:] for model in models])


def cohort_of(rows: list[list[float]], params: Tensor | None = None) -> Cohort:
    updates = torch.tensor(rows, dtype=torch.float64)
    start = torch.zeros(9, dtype=torch.float64) if params is None else params
    return Cohort.of(updates, start, LAYOUT, seed=5, trusted_data=Linear())


CARD = cohort_of(
    [
        [0.1, -0.1, 0.1, 0.05, 0.0, 0.05, 0.1, -0.05, 0.05],
        [0.2, 0.1, -0.1, 0.1, 0.05, 0.0, -0.1, 0.1, 0.05],
        [0.005, 0.0, 0.0, 0.005, 0.8, -0.5, 0.005, 0.005, 0.5],
    ]
)


def test_pinned_values() -> None:
    shares = energy_shares(CARD)
    expected = [[0.642857, 0.285714, 0.071429], [0.615385, 0.346154, 0.038462], [0.000031, 0.000031, 0.999938]]
    assert shares.flatten().tolist() == pytest.approx([x for row in expected for x in row], abs=1e-6)
    assert is_suspicious(shares).tolist() == [False, False, True]


def test_who_trained_nothing_is_not_suspicious() -> None:
    assert not bool(energy_shares(cohort_of([[0.0] * 9] * 3)).any())
    assert is_suspicious(torch.zeros(3, 3)).tolist() == [False] * 3


def test_the_ratio_of_a_models_answers() -> None:
    """The same model: 1 (up to what is added against division by zero). One class certain: 3 and 0."""
    certain = [0.0] * 6 + [50.0, 0.0, 0.0]
    ratios = prediction_ratios(cohort_of([[0.0] * 9, certain]), samples=10, seed=1)
    assert ratios[0].tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert ratios[1].tolist() == pytest.approx([3, 0, 0], abs=1e-4)
    broken = prediction_ratios(cohort_of([[0.0] * 6 + [1e308, 1e308, -1e308]]), samples=10, seed=1)
    assert bool(broken.isfinite().all())


def slow_deepsight(cohort: Cohort, rule: DeepSight) -> list[bool]:
    """The definition, on plain lists. The ratios of predictions are the rule's own, tested above."""
    n = len(cohort)
    energies = [
        [sum(abs(float(x)) for x in row[2 * c : 2 * c + 2]) + abs(float(row[6 + c])) for c in range(3)]
        for row in cohort.updates
    ]
    shares = [[e**2 / sum(x**2 for x in row) if any(row) else 0.0 for e in row] for row in energies]
    trained = [sum(share > max(row) / 3 for share in row) for row in shares]
    median = sorted(trained)[n // 2] if n % 2 else sum(sorted(trained)[n // 2 - 1 : n // 2 + 1]) / 2
    suspicious = [count <= median / 2 and count < median for count in trained]
    biases = [row[6:].tolist() for row in cohort.updates]
    kinds = [
        [[sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) ** 0.5 for two in shares] for one in shares],
        [[0.0 if one == two else 1 - slow_cosine(one, two) for two in biases] for one in biases],
    ]

    def apart(table: list[list[float]], *, single: bool = False) -> list[list[bool]]:
        clusters = slow_density_clusters(table, rule.min_cluster_size, rule.min_samples, single=single)
        return [[i != j and not any({i, j} <= group for group in clusters) for j in range(n)] for i in range(n)]

    tables = [apart(table) for table in kinds]
    merged = [[sum(table[i][j] for table in tables) / len(tables) for j in range(n)] for i in range(n)]
    final = apart(merged, single=True)
    accepted = []
    for i in range(n):
        members = [j for j in range(n) if not final[i][j]]
        accepted.append(3 * sum(suspicious[j] for j in members) < len(members))
    return accepted


rows = st.lists(st.lists(st.integers(-4, 4).map(float), min_size=9, max_size=9), min_size=1, max_size=7)


@settings(max_examples=40)
@given(rows, st.sampled_from([(2, 1), (3, 2)]))
def test_slow_twin(values: list[list[float]], sizes: tuple[int, int]) -> None:
    rule = DeepSight(samples=0, min_cluster_size=sizes[0], min_samples=sizes[1])
    cohort = cohort_of(values)
    assert rule(cohort, None)[0].weights.tolist() == slow_deepsight(cohort, rule)


def honest_and_malicious(n_malicious: int) -> Cohort:
    """Honest clients train all three classes; malicious ones only the last, all in the same way."""
    rng = torch.Generator().manual_seed(0)
    honest = 0.1 * torch.randn(7, 9, generator=rng, dtype=torch.float64)
    honest[:, 6:] = torch.tensor([0.3, -0.2, 0.2]) + 0.01 * torch.randn(7, 3, generator=rng)
    bad = torch.tensor([[0, 0, 0, 0, 5, 5, -0.01, -0.01, 9]], dtype=torch.float64).expand(n_malicious, 9)
    bad = bad + 0.01 * torch.randn(n_malicious, 9, generator=rng, dtype=torch.float64)
    updates = torch.cat([honest, bad])
    return Cohort.of(updates, torch.zeros(9, dtype=torch.float64), LAYOUT, seed=1, trusted_data=Linear())


@pytest.mark.parametrize("samples", [0, 100])
def test_a_cluster_of_one_class_is_rejected_and_the_others_are_clipped(samples: int) -> None:
    cohort = honest_and_malicious(3)
    judgment, _ = DeepSight(samples)(cohort, None)
    assert judgment.weights.tolist() == [True] * 7 + [False] * 3
    assert judgment.scores[7:].tolist() == [1.0] * 3
    assert judgment.updates is not None
    norms = cohort.updates.norm(dim=1)
    median = float((norms.sort().values[4] + norms.sort().values[5]) / 2)
    assert float(judgment.updates.norm(dim=1).max()) == pytest.approx(median)


def test_a_majority_of_one_class_is_what_is_usual() -> None:
    """Where most clients train one class, nobody trains at most half as many classes as the median client."""
    assert DeepSight(0)(honest_and_malicious(8), None)[0].weights.all()


def test_the_bias_of_the_head() -> None:
    assert find_bias(LAYOUT) == "head.bias"
    without = Layout((("head.weight", (3, 2)),), "head.weight", 6)
    assert find_bias(without) is None
    cohort = Cohort.of(torch.randn(5, 6), torch.zeros(6), without)
    assert DeepSight(0)(cohort, None)[0].weights.shape == (5,)


def test_what_it_needs() -> None:
    assert get("deepsight").needs == {Need.INFERENCE}
    with pytest.raises(MissingTrustedData, match="run models on random images"):
        DeepSight(5)(replace(CARD, trusted_data=TrustedData()), None)
    with pytest.raises(ValueError, match=r"DeepSight\.min_cluster_size must be at least 2, got 1"):
        DeepSight(min_cluster_size=1)
    with pytest.raises(ValueError, match=r"DeepSight\.samples must be at least 0, got -1"):
        DeepSight(-1)
    with pytest.raises(ValueError, match=r"DeepSight\.max_suspicious must be in \(0, 1\], got 0.0"):
        DeepSight(max_suspicious=0.0)
