"""Every sample has one owner, and the splits are as skewed as they say."""

from __future__ import annotations

import pytest
import torch

from cosdefense.data.partition import (
    PARTITIONS,
    ByClient,
    Dirichlet,
    Iid,
    LabelSkew,
    Partition,
    QuantitySkew,
    Shards,
)

LABELS = torch.arange(10).repeat(600)[torch.randperm(6000, generator=torch.Generator().manual_seed(0))]


def counts(split: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([torch.bincount(LABELS[own], minlength=10) for own in split])


DRAWN = [name for name, kind in PARTITIONS.items() if not kind.keeps_owners]
CASES = [*(PARTITIONS[name]() for name in DRAWN), LabelSkew(1.0), LabelSkew(0.1), Dirichlet(0.01), Shards(1)]


@pytest.mark.parametrize("partition", CASES, ids=repr)
@pytest.mark.parametrize("n_clients", [10, 37, 100])
def test_every_sample_once_and_nobody_empty(partition: Partition, n_clients: int) -> None:
    split = partition(LABELS, 10, n_clients, 5)
    assert len(split) == n_clients
    assert torch.equal(torch.cat(split).sort().values, torch.arange(6000))
    assert min(len(own) for own in split) > 0


@pytest.mark.parametrize("name", DRAWN)
def test_seeded(name: str) -> None:
    one, again, other = (PARTITIONS[name]()(LABELS, 10, 20, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(len(a) == len(b) and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_label_skew_keeps_q_of_a_class_in_its_group(q: float) -> None:
    table = counts(LabelSkew(q)(LABELS, 10, 10, 0))  # one client per group
    favorite = table.max(dim=1).values
    if q > 0.2:
        assert sorted(table.argmax(dim=1).tolist()) == list(range(10))
    assert float(favorite.float().mean() / 600) == pytest.approx(q, abs=0.04)
    others = (table.sum() - favorite.sum()) / 90
    assert float(others) / 600 == pytest.approx((1 - q) / 9, abs=0.01)


def test_label_skew_splits_groups_evenly() -> None:
    sizes = counts(LabelSkew(1.0)(LABELS, 10, 100, 0)).sum(dim=1)
    assert sizes.tolist() == [60] * 100


def test_iid_is_even() -> None:
    assert {len(own) for own in Iid()(LABELS, 10, 60, 0)} == {100}


def test_dirichlet_is_skewed_by_alpha() -> None:
    def largest_share(alpha: float) -> float:
        table = counts(Dirichlet(alpha)(LABELS, 10, 10, 0)).float()
        return float((table.max(dim=0).values / table.sum(dim=0)).mean())

    assert largest_share(0.1) > 0.5 > largest_share(1.0) > largest_share(100.0)
    assert largest_share(100.0) == pytest.approx(0.1, abs=0.05)


def test_shards_give_few_classes() -> None:
    classes = (counts(Shards(2)(LABELS, 10, 100, 0)) > 0).sum(dim=1)
    assert int(classes.max()) <= 4
    assert int(classes.median()) <= 2


def test_quantity_skew_gives_unequal_sizes_of_the_same_mix() -> None:
    table = counts(QuantitySkew(0.3)(LABELS, 10, 10, 0))
    sizes = table.sum(dim=1)
    assert int(sizes.max()) > 10 * int(sizes.min())
    largest = table[sizes.argmax()] / sizes.max()
    assert float((largest - 0.1).abs().max()) < 0.03


def test_each_owner_is_a_client() -> None:
    owners = torch.tensor([2, 0, 2, 5, 5, 5])
    split = ByClient()(torch.zeros(6), 0, 3, 0, owners)
    assert [own.tolist() for own in split] == [[1], [0, 2], [3, 4, 5]]
    some = ByClient()(torch.zeros(6), 0, 2, 0, owners)
    assert len(some) == 2
    assert {tuple(own.tolist()) for own in some} < {(1,), (0, 2), (3, 4, 5)}


def test_values_can_be_split_without_classes() -> None:
    assert sum(len(own) for own in Iid()(torch.rand(20), 0, 3, 0)) == 20
    for partition in (LabelSkew(), Dirichlet(), Shards()):
        with pytest.raises(ValueError, match=r"needs one class per sample, found other targets: choose .*iid"):
            partition(torch.rand(20), 0, 3, 0)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"q must be in \[0, 1\], got 1.5"):
        LabelSkew(1.5)
    with pytest.raises(ValueError, match="alpha must be positive, got 0"):
        Dirichlet(0.0)
    with pytest.raises(ValueError, match="per_client must be at least 1, got 0"):
        Shards(0)
    with pytest.raises(ValueError, match=r"at least one client per class \(10\), got 9"):
        LabelSkew()(LABELS, 10, 9, 0)
    with pytest.raises(ValueError, match=r"got 5: choose .*dirichlet"):
        LabelSkew()(LABELS, 10, 5, 0)
    with pytest.raises(ValueError, match="needs data that say whose each sample is"):
        ByClient()(LABELS, 10, 5, 0)
    with pytest.raises(ValueError, match="belong to 2 clients: choose 1 to 2, not 3"):
        ByClient()(LABELS[:4], 10, 3, 0, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="3 samples can be split among 1 to 3 clients, not 4"):
        Iid()(LABELS[:3], 10, 4, 0)
