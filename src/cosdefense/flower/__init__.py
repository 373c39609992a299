"""The same defenses in a real Flower federation. Needs flwr, the extra "flower"."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("cosdefense.flower needs flwr: pip install 'cosdefense[flower]'", name="flwr")

from .defended import Defended
from .reasons import Reason
from .red_team import red_team

__all__ = ["Defended", "Reason", "red_team"]
