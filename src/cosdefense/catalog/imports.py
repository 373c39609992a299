"""Imports a part that an experiment names, and checks that it is made for the purpose before anything calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints

from ..core.experiment_folder import import_module
from .options import ConfigError

T = TypeVar("T")


def import_part(path: str, needed: type[T], kind: str) -> Callable[..., T]:
    """What "package.module:Class" names: a subclass of `needed`, or a function annotated to return one.

    To import a module is to run its code. But no function of an innocent module is called only because a file names
    it: `os:abort` is refused.
    """
    module, _, attribute = path.partition(":")
    try:
        part: Callable[..., T] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"{kind} {path!r} cannot be imported: {error}") from error
    if not _gives(part, needed):
        rule = f"a subclass of {needed.__name__}, or a function annotated to return one (-> {needed.__name__})"
        raise ConfigError(f"{kind} {path!r} must be {rule}, got {_describe(part)}")
    if inspect.isabstract(part):
        raise ConfigError(f"{kind} {path!r} is abstract: name a subclass that implements its methods")
    refuse_reserved_options(part, f"{kind} {path!r}", ("name", "label") if kind in ("attack", "defense") else ("name",))
    return part


def refuse_reserved_options(part: Callable[..., Any], what: str, reserved: tuple[str, ...] = ("name",)) -> None:
    """Refuse options whose names mean something else in a table: which part it is, and what it is called in reports."""
    for name in _list_options(part):
        if name in reserved:
            raise ConfigError(f"{what} has an option {name!r}, which a table cannot hold: rename it")


@cache  # a grid describes its parts thousands of times
def _list_options(part: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(part).parameters)


def _gives(part: object, needed: type) -> bool:
    """Whether a call gives what is needed, as far as can be known without one."""
    given = part if inspect.isclass(part) else _return_type(part)
    return inspect.isclass(given) and issubclass(given, needed)


def _return_type(part: object) -> object:
    """The annotation of a Python function. Other callables have none that could be relied on."""
    if not inspect.isfunction(part):
        return None
    try:
        return get_type_hints(part).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def _describe(part: object) -> str:
    if inspect.isclass(part):
        return f"the class {part.__name__}"
    if inspect.isfunction(part):
        annotation = inspect.signature(part).return_annotation
        return f"a function that returns {'nothing known' if annotation is inspect.Signature.empty else annotation}"
    return type(part).__name__
