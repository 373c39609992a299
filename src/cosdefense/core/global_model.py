"""State_dicts of a global model and of clients, as one vector and its updates, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .bare_updates import narrow
from .layout import Layout, find_tied

StateDict = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """The model that every client of a round started from."""

    tensors: StateDict
    layout: Layout
    params: Float[Tensor, " d"]  # in float32, or in float64 if any tensor is: sums in half precision lose too much

    @classmethod
    def of(cls, model: nn.Module | StateDict, head: str | None) -> GlobalModel:
        tensors = _state_dict(model, "the global model")
        layout = Layout.of(model, head)
        devices = {str(tensors[name].device) for name, _ in layout.shapes}
        if len(devices) > 1:
            raise ValueError(f"the global model must be on one device, got {sorted(devices)}")
        wide = any(tensor.dtype == torch.float64 for tensor in tensors.values())
        dtype = torch.float64 if wide else torch.float32
        pieces = [tensors[name].reshape(-1).to(dtype) for name, _ in layout.shapes]
        return cls(tensors, layout, torch.cat(pieces))

    def updates(self, clients: Sequence[nn.Module | StateDict]) -> Float[Tensor, "n d"]:
        """One row per client: its model minus this one."""
        if isinstance(clients, Mapping | nn.Module | Tensor) or not isinstance(clients, Sequence):
            raise TypeError(
                f"the clients' models must be a list of state_dicts, one per client, got {type(clients).__name__}"
            )
        if not clients:
            raise ValueError("the clients' models must be at least one state_dict, got an empty list")
        rows = self.params.new_empty(len(clients), self.layout.size)
        for number, (row, client) in enumerate(zip(rows, clients, strict=True)):
            tensors = _state_dict(client, f"client {number}")
            self._check(tensors, f"client {number}")
            for name, where in self.layout.slices.items():
                row[where] = tensors[name].reshape(-1)
        return rows.sub_(self.params)

    def add(self, update: Float[Tensor, " d"]) -> dict[str, Tensor]:
        """The state_dict of the updated model. What is in no vector (counters) stays as it is here."""
        moved = self.layout.unflatten(self.params + update)
        tied = find_tied(self.tensors)
        result = dict[str, Tensor]()
        for name, old in self.tensors.items():
            if name in tied:
                result[name] = result[tied[name]]
            elif name in moved:
                result[name] = torch.empty_like(old).copy_(narrow(moved[name], old.dtype))
            else:
                result[name] = old.clone()
        return result

    def _check(self, tensors: StateDict, who: str) -> None:
        missing = [name for name, _ in self.layout.shapes if name not in tensors]
        unknown = [name for name in tensors if name not in self.tensors]
        if missing or unknown:
            problems = [f"{what} {names}" for what, names in (("misses", missing), ("has unknown", unknown)) if names]
            raise ValueError(f"{who} must have the tensors of the global model, but it {' and '.join(problems)}")
        for name, _ in self.layout.shapes:
            ours, theirs = self.tensors[name], tensors[name]
            for what in ("shape", "dtype", "device"):
                needed, got = getattr(ours, what), getattr(theirs, what)
                if needed != got:
                    needed, got = (tuple(needed), tuple(got)) if what == "shape" else (needed, got)
                    raise ValueError(f"{who}: tensor {name!r} needs {what} {needed}, got {got}")


def _state_dict(model: nn.Module | StateDict, who: str) -> StateDict:
    if isinstance(model, nn.Module):
        return model.state_dict()
    if not isinstance(model, Mapping):
        raise TypeError(f"{who} must be a state_dict or an nn.Module, got {type(model).__name__}")
    for name, tensor in model.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{who}: {name!r} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.is_complex():
            raise TypeError(f"{who}: {name!r} must be real, got {tensor.dtype}")
    return model
