"""Streams of random numbers by purpose."""

from __future__ import annotations

import torch

from cosdefense.core import derive, generator


def test_a_stream_is_torchs_own_with_the_derived_seed() -> None:
    expected = torch.randn(5, generator=torch.Generator().manual_seed(derive(3, "noise", 7)))
    assert torch.equal(torch.randn(5, generator=generator(3, "noise", 7)), expected)
    assert torch.equal(torch.randn(5, generator=generator(3, "noise", 7, device=torch.device("cpu"))), expected)


def test_streams_of_different_purposes_differ() -> None:
    drawn = [torch.randn(5, generator=generator(*key)) for key in ((3, "a", 1), (3, "a", 2), (3, "b", 1), (4, "a", 1))]
    assert all(not torch.equal(one, other) for i, one in enumerate(drawn) for other in drawn[:i])
