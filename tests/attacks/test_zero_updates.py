"""Free-riders: zeros, what they cost a plain mean, and which rule falls for them."""

from __future__ import annotations

import torch

from cosdefense import Cohort, Layout, get
from cosdefense.attacks import ZeroUpdates
from cosdefense.simulation.client_training import LocalWork, train_round
from doubles import cohort_of
from worlds import digits_world

MALICIOUS = torch.arange(10) >= 6


def test_every_coordinate_is_zero_buffers_too() -> None:
    forged, _ = ZeroUpdates().forge(cohort_of([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([False, True]), None)
    assert forged[1].tolist() == [0, 0, 0]


def test_free_riders_do_not_train() -> None:
    world = digits_world(n_clients=10)
    params, malicious = world.task.initial(), torch.tensor([False, True, False, True])
    updates = torch.full((4, len(params)), torch.nan)
    train_round(
        updates,
        world,
        ZeroUpdates(),
        None,
        (),
        params,
        torch.arange(4),
        malicious,
        local=LocalWork(4),
        seed=0,
        number=0,
    )
    assert updates[malicious].abs().max() == 0
    assert bool((updates[~malicious].norm(dim=1) > 0).all())


def test_a_mean_loses_their_share_and_krum_everything() -> None:
    """Honest rows are nearly orthogonal to each other, so zeros are closer to all of them than they are."""
    rows = 0.2 + torch.randn(10, 400, generator=torch.Generator().manual_seed(0))
    layout = Layout((("w", (400,)),), "w", 400)
    forged, _ = ZeroUpdates().forge(Cohort.of(rows, torch.zeros(400), layout), MALICIOUS, None)
    cohort = Cohort.of(torch.where(MALICIOUS[:, None], forged, rows), torch.zeros(400), layout)
    updates = {name: get(name)(cohort, get(name).init())[0].update for name in ("fedavg", "krum")}
    torch.testing.assert_close(updates["fedavg"], 0.6 * rows[:6].mean(dim=0), rtol=1e-5, atol=1e-6)
    assert float(updates["krum"].abs().max()) == 0
