"""A defense as an aggregator of NVIDIA FLARE, for its FedAvg and ScatterAndGather workflows."""

from __future__ import annotations

import threading
from typing import Any

import torch
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import Tensor

from ..catalog.registry import build_defense
from ..core import Cohort, State, Verdict
from ..core.global_model import GlobalModel
from .arrays import to_client_id, to_tensors


class DefendedAggregator(ModelAggregator):  # type: ignore[misc]  # FLARE has no types
    """Rejects malformed and suspicious results and combines the others: `FedAvg(aggregator=DefendedAggregator())`.

    Clients may send whole models or differences; the result is of the same kind. A client counts once per round. Sample
    counts are not used, because nobody can check them. Where a rule has too few clients, or nobody is left, the model
    stays as it is.

    Args:
        defense: The name of a defense of the catalog.
        options: Its options.
        head: The classifier's weight matrix, for rules that look at it. None: the last matrix.
        seed: For rules that draw at random.
    """

    def __init__(
        self,
        defense: str = "factions",
        options: dict[str, Any] | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        # FLARE writes components as their arguments, which it reads from the attributes of the same names.
        self.defense, self.options, self.head, self.seed = defense, options, head, seed
        self._defense = build_defense({"name": defense, **(options or {})})
        self._memory: State = self._defense.init()
        self._lock = threading.Lock()  # results may be handled by several threads
        self._rows: dict[str, Tensor] = {}  # the update of each client of this round
        self._kind = ParamsType.FULL
        self.verdict: Verdict | None = None  # of the last round

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Called by ScatterAndGather. Whether the result is one that the defense will judge."""
        self.fl_ctx = fl_ctx
        if shareable.get_return_code() != ReturnCode.OK:
            return False
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
        except Exception as error:  # bytes from a client may be anything
            self.warning(f"a result was refused: {error!r:.200}")
            return False
        name = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, None)
        model.meta = {**(model.meta or {}), "client_name": name}
        return self.accept_model(model)

    def accept_model(self, model: FLModel) -> bool:
        """Called by FedAvg for each result."""
        name = str((model.meta or {}).get("client_name") or "")
        try:
            row = self._to_row(model)
        except ValueError as error:
            self.warning(f"the result of {name!r:.80} was refused: {error!s:.200}")
            return False
        with self._lock:
            if not name or name in self._rows:
                self.warning(f"the result of {name!r:.80} was refused: it has no name, or sent one before")
                return False
            self._rows[name] = row
            self._kind = model.params_type
        return True

    def aggregate_model(self) -> FLModel:
        """Judge the results of this round and combine those that are accepted."""
        with self._lock:
            names, rows, self._rows = sorted(self._rows), self._rows, {}
        model = self._global_model()
        if not names:
            return self._build_result(model, torch.zeros_like(model.params))
        number = int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND, 0)) if self.fl_ctx else 0
        cohort = Cohort.of(
            torch.stack([rows[name] for name in names]), model.params, model.layout,
            torch.tensor([to_client_id(name) for name in names]), seed=self.seed + number,
        )  # fmt: skip
        with torch.no_grad():
            _, self.verdict, self._memory = self._defense.run_round(cohort, self._memory)
        rejected = [name for name, weight in zip(names, self.verdict.weights.tolist(), strict=True) if weight == 0]
        self.info(f"round {number}: {len(names)} results, rejected: {', '.join(rejected) or 'none'}")
        if self.verdict.skipped:
            self.warning(f"round {number}: the model stays as it is: {self.verdict.skipped}")
        return self._build_result(model, self.verdict.update)

    def reset_stats(self) -> None:
        """A round begins. What the defense remembers of clients stays."""
        with self._lock:
            self._rows = {}

    def _to_row(self, result: FLModel) -> Tensor:
        """The update: what the client sent minus the global model, or the difference that it sent."""
        model, tensors = self._global_model(), to_tensors(result.params)
        if result.params_type == ParamsType.DIFF:
            if set(tensors) != set(model.tensors):
                raise ValueError(f"it must have the {len(model.tensors)} tensors of the global model")
            tensors = {name: _add(name, old, tensors[name]) for name, old in model.tensors.items()}
        return model.updates([tensors])[0]

    def _global_model(self) -> GlobalModel:
        learnable = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) if self.fl_ctx else None
        if not learnable or not learnable.get(ModelLearnableKey.WEIGHTS):
            raise RuntimeError("DefendedAggregator needs the global model: give the workflow a persistor that has it")
        return GlobalModel.of(to_tensors(learnable[ModelLearnableKey.WEIGHTS]), self.head)

    def _build_result(self, model: GlobalModel, update: Tensor) -> FLModel:
        new = model.add(update)
        if self._kind == ParamsType.DIFF:
            new = {name: new[name] - old for name, old in model.tensors.items()}
        return FLModel(params_type=self._kind, params={name: tensor.numpy() for name, tensor in new.items()})


def _add(name: str, old: Tensor, difference: Tensor) -> Tensor:
    if difference.shape != old.shape:
        raise ValueError(f"{name} needs shape {tuple(old.shape)}, got {tuple(difference.shape)}")
    return (old + difference).to(old.dtype)
