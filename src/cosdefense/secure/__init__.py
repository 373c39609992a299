"""Secure aggregation between two servers: updates are judged and added without being seen."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .defense import NoLengthProof, Secure

__all__ = ["NoLengthProof", "Secure"]

# Imported when they are first used: a helper needs neither of them, nor torch.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(".defense", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
