"""cosdefense keeps poisoned model updates out of federated learning.

Clients send updates. Filters judge them. An aggregator combines what is left. The server adds the result.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        Verdict,
    )

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
    "MissingTrustedData",
    "Need",
    "TooFewClients",
    "TrustedData",
    "Verdict",
    "get",
    "presets",
]

# A name is looked up when it is first asked for: `cosdefense --help` imports this module too, and needs no torch.
if not TYPE_CHECKING:
    _MODULES = {
        "attacks": ("Attack",),
        "catalog.registry": ("get",),
        "core": (
            "Aggregator",
            "ClientHook",
            "ClientTable",
            "Cohort",
            "Defense",
            "Filter",
            "Judged",
            "Judgment",
            "Layout",
            "MissingTrustedData",
            "Need",
            "TooFewClients",
            "TrustedData",
            "Verdict",
        ),
    }
    _PACKAGES = {
        "aggregators": "aggregators",
        "attacks": "attacks",
        "filters": "filters",
        "hooks": "hooks",
        "presets": "catalog.presets",
    }

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f".{_PACKAGES[name]}", __name__)
        for module, names in _MODULES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
