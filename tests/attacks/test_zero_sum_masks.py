"""Zero-sum masks: they cancel, they have the asked norm, and what they hide is unchanged otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cosdefense import Cohort, Layout, get
from cosdefense.attacks import Adaptive, Backdoor, InnerProduct, KrumPoisoning, Mimic, OptimizedTrigger, ZeroSumMasks
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_attack, describe

LAYOUT = Layout((("w", (300,)), ("norm.running_mean", (2,))), "w", 300)
MALICIOUS = torch.arange(10) >= 7


def round_of(clients: list[int] | None = None) -> Cohort:
    rows = 0.2 + torch.randn(10, 302, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = None if clients is None else torch.tensor(clients)
    return Cohort.of(rows, torch.zeros(302, dtype=torch.float64), LAYOUT, names)


@pytest.mark.parametrize("attack", [InnerProduct(2.0), KrumPoisoning(), Mimic()])
def test_the_masks_sum_to_zero(attack: InnerProduct) -> None:
    cohort = round_of()
    plain, _ = attack.forge(cohort, MALICIOUS, attack.init())
    hidden, _ = ZeroSumMasks(attack, 0.5).forge(cohort, MALICIOUS, attack.init())
    masks = (hidden - plain)[MALICIOUS]
    torch.testing.assert_close(masks.sum(dim=0), torch.zeros(302, dtype=torch.float64), rtol=0, atol=1e-12)
    assert not bool(masks[:, 300:].any())  # buffers have none
    norm = float(plain[MALICIOUS, :300].norm(dim=1).mean())
    assert float(masks.norm(dim=1).square().mean().sqrt()) == pytest.approx(0.5 * norm)
    torch.testing.assert_close(hidden[MALICIOUS].mean(dim=0), plain[MALICIOUS].mean(dim=0))


def test_pinned_example() -> None:
    """Three masks by hand on an update of ones: each row differs, their mean does not."""
    masks = torch.tensor([[0.3, -0.2], [-0.1, 0.5], [-0.2, -0.3]])
    assert (1 + masks).mean(dim=0).tolist() == pytest.approx([1, 1])
    layout = Layout((("w", (2,)),), "w", 2)
    cohort = Cohort.of(-torch.ones(4, 2), torch.zeros(2), layout)
    hidden, _ = ZeroSumMasks(InnerProduct(1.0)).forge(cohort, torch.arange(4) > 0, None)
    assert hidden[1:].mean(dim=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    assert len({tuple(row) for row in hidden[1:].tolist()}) == 3


def test_near_duplicates_are_not_found_any_more() -> None:
    """The plain attack sends equal rows, which FoolsGold gives no weight. With masks it gives them some."""
    cohort, shares = round_of(), []
    for attack in (InnerProduct(1.0), ZeroSumMasks(InnerProduct(1.0), 3.0)):
        forged, _ = attack.forge(cohort, MALICIOUS, None)
        sent = replace(cohort, updates=torch.where(MALICIOUS[:, None], forged, cohort.updates))
        weights = get("foolsgold")(sent, get("foolsgold").init())[0].weights
        shares.append(float(weights[MALICIOUS].sum() / weights.sum()))
    assert shares[0] < 0.01
    assert shares[1] > 0.2


def test_the_masks_belong_to_clients_and_one_client_has_none() -> None:
    here, _ = ZeroSumMasks().forge(round_of(), MALICIOUS, None)
    there, _ = ZeroSumMasks().forge(round_of([*range(8), 9, 8]), MALICIOUS, None)
    torch.testing.assert_close(here[8], there[9])
    alone = torch.arange(10) == 0
    assert torch.equal(
        ZeroSumMasks().forge(round_of(), alone, None)[0], InnerProduct().forge(round_of(), alone, None)[0]
    )


def test_everything_else_is_that_of_the_hidden_attack() -> None:
    attack = ZeroSumMasks(Backdoor(target=3, steps=4))
    images, labels = torch.zeros(5, 1, 8, 8), torch.tensor([1, 2, 3, 4, 5])
    assert attack.poison(images, labels, 10, torch.Generator())[1].tolist() == [3, 3, 3, 4, 5]
    aim = attack.prepare_evaluation(images, labels, 10)
    assert aim is not None
    assert aim[1].tolist() == [3, 3, -1, 3, 3]
    assert attack.plan_training(torch.zeros(302), LAYOUT, 2, None).steps == 4
    assert ZeroSumMasks(Mimic()).init().rounds == 0
    informed, _ = ZeroSumMasks(Adaptive(trials=2)).with_defense(get("krum"), get("krum").init(), None)
    assert informed == ZeroSumMasks(Adaptive(get("krum"), trials=2))


def test_an_optimized_trigger_behind_masks() -> None:
    attack = ZeroSumMasks(OptimizedTrigger(size=1, offset=0, passes=1, rate=0.25))
    images, labels = torch.zeros(4, 1, 2, 2), torch.tensor([1, 2, 3, 4])
    informed, state = attack.with_model(lambda x, y: x.sum(), images, labels, attack.init())
    assert state.trigger.flatten().tolist() == [0.25]
    assert float(informed.poison(images, labels, 10, torch.Generator())[0][0, 0, 0, 0]) == 0.25
    aim = attack.with_state(state).prepare_evaluation(images, labels, 10)
    assert aim is not None
    assert float(aim[0][3, 0, 0, 0]) == 0.25


def test_from_a_file() -> None:
    by_name = build_attack({"name": "zero-sum-masks", "attack": "sign-flip"})
    assert build_attack(describe(by_name)) == by_name
    nested = build_attack({"name": "zero-sum-masks", "attack": {"name": "adaptive", "defense": "krum", "trials": 3}})
    assert nested == ZeroSumMasks(Adaptive(get("krum"), trials=3))
    assert build_attack(describe(nested)) == nested
    with pytest.raises(ConfigError, match="attack 'sign-flop' is unknown: did you mean 'sign-flip'"):
        build_attack({"name": "zero-sum-masks", "attack": "sign-flop"})
    with pytest.raises(ValueError, match=r"ZeroSumMasks.strength must be positive and finite, got 0.0"):
        ZeroSumMasks(strength=0.0)
