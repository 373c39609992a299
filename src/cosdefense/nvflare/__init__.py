"""The defenses in NVIDIA FLARE: `DefendedAggregator` combines results, `UpdateFilter` checks each by itself."""

from __future__ import annotations

from ..catalog.extras import extra_libraries

with extra_libraries("nvflare", "cosdefense.nvflare", "nvflare"):
    from .aggregator import DefendedAggregator
    from .update_filter import UpdateFilter

__all__ = ["DefendedAggregator", "UpdateFilter"]
