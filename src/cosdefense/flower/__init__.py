"""The defenses in a Flower federation: `Defended` wraps a strategy, `MaliciousClient` wraps a client to test it."""

from __future__ import annotations

from importlib.util import find_spec

from ..catalog.extras import MissingExtra, install_hint

if find_spec("flwr") is None:
    raise MissingExtra(f"cosdefense.flower needs flwr: {install_hint('flower')}", name="flwr")

from .defended import Defended
from .federation import AllRoundsSkipped
from .legacy import LegacyStrategy, build_client_app
from .malicious_client import MaliciousClient
from .pull_threads import PullLimits, SuperLinkLost
from .reasons import Reason

__all__ = [
    "AllRoundsSkipped",
    "Defended",
    "LegacyStrategy",
    "MaliciousClient",
    "PullLimits",
    "Reason",
    "SuperLinkLost",
    "build_client_app",
]
