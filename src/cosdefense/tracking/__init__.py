"""Runs in experiment trackers: TensorBoard, MLflow, Weights & Biases, a function of your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .tracker import Callback, Tracker

if TYPE_CHECKING:
    from .mlflow import MLflow
    from .tensorboard import TensorBoard
    from .wandb import WeightsAndBiases

__all__ = ["Callback", "MLflow", "TensorBoard", "Tracker", "WeightsAndBiases"]

# These need the libraries of extras.
if not TYPE_CHECKING:
    _MODULES = {"MLflow": "mlflow", "TensorBoard": "tensorboard", "WeightsAndBiases": "wandb"}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
