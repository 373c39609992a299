"""A filter of the catalog as a filter of NVIDIA FLARE, which sees one result at a time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from ..catalog.registry import FILTERS, build
from ..core import Cohort, Filter, Layout, State
from ..ops import finite_rows
from .arrays import to_tensors


class UpdateFilter(DXOFilter):  # type: ignore[misc]  # FLARE has no types
    """Runs one filter on each difference by itself: clipping, at the client or at the server.

    FLARE gives its filters one result at a time, so only rules that judge a client alone make sense here: `clip`, and
    `norm-limit`, which clips to a running median of the norms that it saw. `DefendedAggregator` compares clients.
    A rejected result raises ValueError, on which FLARE drops it.

    Args:
        part: The name of a filter of the catalog.
        options: Its options.
    """

    def __init__(self, part: str = "clip", options: dict[str, Any] | None = None) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHT_DIFF], data_kinds_to_filter=[DataKind.WEIGHT_DIFF])
        self.part, self.options = part, options
        self._filter = build(FILTERS, {"name": part, **(options or {})}, Filter)  # type: ignore[type-abstract]
        self._memory: State = self._filter.init()
        self._lock = threading.Lock()

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        tensors = to_tensors(dxo.data)
        layout = Layout.of(tensors)
        row = layout.flatten(tensors)[None]
        if not bool(finite_rows(row).all()):
            raise ValueError("the update was rejected: it is not finite")
        cohort = Cohort.of(row, torch.zeros_like(row[0]), layout)
        with self._lock, torch.no_grad():
            judgment, self._memory = self._filter(cohort, self._memory)
        if float(judgment.weights[0]) == 0:
            raise ValueError(f"the update was rejected by {self.part}, score {float(judgment.scores[0]):.4g}")
        if judgment.updates is not None:
            changed = layout.unflatten(judgment.updates[0])
            dxo.data = {name: _as_before(value, changed.get(name)) for name, value in dxo.data.items()}
        return dxo


def _as_before(value: Any, changed: torch.Tensor | None) -> Any:
    """The new numbers in the old type."""
    return value if changed is None else np.asarray(changed.numpy(), dtype=np.asarray(value).dtype)
