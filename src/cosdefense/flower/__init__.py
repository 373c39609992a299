"""The same defenses in a real Flower federation. Needs flwr, the extra "flower"."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("cosdefense.flower needs flwr: pip install 'cosdefense[flower]'", name="flwr")

from .attack_mod import red_team
from .defended import Defended
from .reasons import Reason

__all__ = ["Defended", "Reason", "red_team"]
