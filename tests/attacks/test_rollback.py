"""Rollback: what it sends, against its formula; what it does to a model that a plain mean trains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cosdefense import Cohort, Layout
from cosdefense.attacks import Rollback
from doubles import weights_only
from shapes import unchecked

MALICIOUS = torch.arange(5) >= 3
ROWS = [[3.0, 4.0], [6.0, 8.0], [0.0, 1.0], [9.0, 9.0], [7.0, -7.0]]


def round_at(model: list[float]) -> Cohort:
    return replace(weights_only(ROWS), params=torch.tensor(model, dtype=torch.float64))


def test_it_computes_its_formula() -> None:
    attack, average = Rollback(0.9), [0.0, 0.0]
    state = attack.init()
    for number, model in enumerate(([1.0, 2.0], [2.0, 2.0], [2.0, 5.0])):
        forged, state = attack.forge(round_at(model), MALICIOUS, state)
        average = [0.9 * a + 0.1 * w if number else w for a, w in zip(average, model, strict=True)]
        back = [a - w for a, w in zip(average, model, strict=True)]
        length = sum(b * b for b in back) ** 0.5
        expected = [5.0 * b / length if number else 0.0 for b in back]  # three honest rows, of norms 5, 10 and 1
        assert forged[3].tolist() == forged[4].tolist() == pytest.approx(expected)
        assert forged[:3].tolist() == ROWS[:3]


def test_a_round_without_malicious_clients_moves_the_average_too() -> None:
    nobody = torch.zeros(5, dtype=torch.bool)
    cohort = round_at([1.0, 0.0])
    forged, state = Rollback(0.5).forge(cohort, nobody, torch.zeros(2, dtype=torch.float64))
    assert forged is cohort.updates
    assert state.tolist() == [0.5, 0.0]


def test_partial_knowledge() -> None:
    forged, _ = Rollback(0.5, "partial").forge(round_at([1.0, 0.0]), MALICIOUS, torch.zeros(2, dtype=torch.float64))
    assert forged[3].tolist() == pytest.approx([-(128**0.5), 0.0])  # between norms √162 and √98


def test_buffers_are_those_of_the_known_mean() -> None:
    layout = Layout((("w", (2,)), ("norm.running_mean", (1,))), "w", 2)
    rows = torch.tensor([[1.0, 0.0, 4.0], [0.0, 1.0, 8.0], [5.0, 5.0, 99.0]])
    cohort = Cohort.of(rows, torch.zeros(3), layout)
    forged, _ = Rollback().forge(cohort, torch.tensor([False, False, True]), Rollback().init())
    assert forged[2].tolist() == [0.0, 0.0, 6.0]


def test_it_keeps_a_plain_mean_from_a_target() -> None:
    """Clients whose updates differ go towards a target; three of ten, no longer than they are, hold the model back."""
    rng, ends = torch.Generator().manual_seed(0), {}
    malicious = torch.arange(10) >= 7
    for attack in (None, Rollback()):
        model, state = torch.zeros(40, dtype=torch.float64), Rollback().init()
        for _ in range(60):
            rows = 0.02 * (1 - model) + 0.1 * torch.randn(10, 40, generator=rng, dtype=torch.float64)
            cohort = replace(weights_only(rows.tolist()), params=model)
            if attack is not None:
                rows, state = attack.forge(cohort, malicious, state)
            model = model + rows.mean(dim=0)
        ends[attack] = float(model.mean())
    assert ends[None] > 0.6
    assert ends[Rollback()] < ends[None] / 2


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"decay must be"):
        Rollback(1.5)
    with unchecked(), pytest.raises(ValueError, match=r"knowledge must be one of \('full', 'partial'\), got 'none'"):
        Rollback(knowledge="none")  # type: ignore[arg-type]
