"""Secure aggregation between two servers: updates are judged and added without being seen."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .defense import NoLengthProof, Secure
    from .leader import HelperUnreachable
    from .remote_helper import RemoteHelper

__all__ = ["HelperUnreachable", "NoLengthProof", "RemoteHelper", "Secure"]

# Imported when they are first used: a helper needs none of them, nor torch.
if not TYPE_CHECKING:
    _MODULES = {"NoLengthProof": "defense", "Secure": "defense"}
    _MODULES |= {"HelperUnreachable": "leader", "RemoteHelper": "remote_helper"}

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
