"""cosdefense keeps poisoned model updates out of federated learning.

Clients send updates. Filters judge them. An aggregator combines what is left. The server adds the result.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attacks import Attack
    from .catalog import recipe
    from .cohort import Cohort, MissingTrustedData, TooFewClients, TrustedData
    from .defense import Aggregator, ClientHook, Defense, Filter, Judgment, Need, Verdict
    from .layout import Layout
    from .memory import ClientTable

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Attack",
    "ClientHook",
    "ClientTable",
    "Cohort",
    "Defense",
    "Filter",
    "Judgment",
    "Layout",
    "MissingTrustedData",
    "Need",
    "TooFewClients",
    "TrustedData",
    "Verdict",
    "recipe",
]

# A name is looked up when it is first asked for: `cosdefense --help` passes through here too, and needs no torch.
if not TYPE_CHECKING:
    _HOMES = {
        "attacks": ("Attack",),
        "catalog": ("recipe",),
        "cohort": ("Cohort", "MissingTrustedData", "TooFewClients", "TrustedData"),
        "defense": ("Aggregator", "ClientHook", "Defense", "Filter", "Judgment", "Need", "Verdict"),
        "layout": ("Layout",),
        "memory": ("ClientTable",),
        "aggregators": (),
        "filters": (),
        "hooks": (),
    }

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name == home:
                return import_module(f".{home}", __name__)
            if name in names:
                found = globals()[name] = getattr(import_module(f".{home}", __name__), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
