"""cosdefense keeps poisoned model updates out of federated learning.

Clients send updates. Filters judge them. An aggregator combines what is left. The server adds the result.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import aggregators, attacks, filters, hooks
    from .attacks import Attack
    from .catalog import presets
    from .catalog.registry import get
    from .core import (
        Aggregator,
        ClientHook,
        ClientTable,
        Cohort,
        Defense,
        Filter,
        Judged,
        Judgment,
        Layout,
        MissingTrustedData,
        Need,
        TooFewClients,
        TrustedData,
        UnknownLayer,
        Verdict,
    )
    from .runs.frames import read_runs
    from .simulation.loop import simulate
    from .simulation.schedule import Schedule
    from .simulation.world import World
    from .training.local_sgd import LocalSGD
    from .training.task import Task

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Attack",
    "ClientHook",
    "ClientTable",
    "Cohort",
    "Defense",
    "Filter",
    "Judged",
    "Judgment",
    "Layout",
    "LocalSGD",
    "MissingTrustedData",
    "Need",
    "Schedule",
    "Task",
    "TooFewClients",
    "TrustedData",
    "UnknownLayer",
    "Verdict",
    "World",
    "aggregators",
    "attacks",
    "filters",
    "get",
    "hooks",
    "presets",
    "read_runs",
    "simulate",
]

# A name is imported when it is first used: `cosdefense --help` imports this module too, and needs no torch.
if not TYPE_CHECKING:
    _PACKAGES = {
        "aggregators": "aggregators",
        "attacks": "attacks",
        "filters": "filters",
        "hooks": "hooks",
        "presets": "catalog.presets",
    }
    _MODULES = {  # all other names come from core
        "Attack": "attacks",
        "LocalSGD": "training.local_sgd",
        "Schedule": "simulation.schedule",
        "Task": "training.task",
        "World": "simulation.world",
        "get": "catalog.registry",
        "read_runs": "runs.frames",
        "simulate": "simulation.loop",
    }

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f".{_PACKAGES[name]}", __name__)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULES.get(name, 'core')}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
