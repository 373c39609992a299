"""The defenses in a Flower federation: `Defended` wraps a strategy, `MaliciousClient` wraps a client to test it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..catalog.extras import MissingExtra, extra_libraries, install_hint

if find_spec("flwr") is None:
    raise MissingExtra(f"cosdefense.flower needs flwr: {install_hint('flower')}", name="flwr")

from .defended import Defended
from .federation import AllRoundsSkipped
from .legacy import LegacyStrategy, build_client_app
from .malicious_client import MaliciousClient
from .pull_threads import PullLimits, SuperLinkLost
from .reasons import Reason

if TYPE_CHECKING:
    from .secure_client import secure_mod
    from .secure_leader import HelperLost

__all__ = [
    "AllRoundsSkipped",
    "Defended",
    "HelperLost",
    "LegacyStrategy",
    "MaliciousClient",
    "PullLimits",
    "Reason",
    "SuperLinkLost",
    "build_client_app",
    "secure_mod",
]

# Imported when they are first used: they need the extra "secure".
if not TYPE_CHECKING:
    _MODULES = {"HelperLost": "secure_leader", "secure_mod": "secure_client"}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with extra_libraries("secure", f"cosdefense.flower.{name}", "cryptography"):
            value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
