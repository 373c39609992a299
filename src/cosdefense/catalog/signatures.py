"""What a part's class says about itself: its summary, options, defaults and needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core import Need


def first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").splitlines()[0]


def options_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Options and their defaults."""
    parameters = inspect.signature(target).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}


def required_by(target: Callable[..., Any]) -> list[str]:
    """Options without a default. What a model is told about the data is not the user's to say."""
    parameters = inspect.signature(target).parameters
    given = ("shape", "n_classes")
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in given]


def needs_of(target: Any) -> frozenset[Need]:
    """A part declares what it needs; a recipe needs what its parts do."""
    has_needs: Any = target if inspect.isclass(target) else target()
    needs: frozenset[Need] = has_needs.needs
    return needs
