"""What the clients of the simulated federation do: a step towards ones, or, at malicious sites, far away from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal


class Step(Executor):  # type: ignore[misc]  # FLARE has no types
    def __init__(self, malicious: list[str]) -> None:
        super().__init__()
        self.malicious = malicious

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        weights: dict[str, Any] = from_shareable(shareable).data
        site = str(fl_ctx.get_identity_name())
        rng = np.random.default_rng(int(site.rsplit("-", 1)[1]))
        factor = -5.0 if site in self.malicious else 0.5
        difference = {
            name: (factor * (1 - value) + 0.01 * rng.normal(size=value.shape)).astype(value.dtype)
            for name, value in weights.items()
        }
        return DXO(DataKind.WEIGHT_DIFF, data=difference).to_shareable()
