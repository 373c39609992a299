"""Checks options from a file against the type hints of what they configure."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class ConfigError(ValueError):
    """A mistake in a user's settings. The message names the key, what was needed and what was given."""


def unknown_name_error(what: str, name: object, known: Iterable[str]) -> ConfigError:
    """An error that suggests the nearest known name."""
    known = sorted(known)
    near = get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
    return ConfigError(f"{what} {str(name)!r} is unknown: {hint}")


def check_options(
    target: Callable[..., Any], given: Mapping[str, Any], where: str, reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`given` as keyword arguments for `target`, coerced to its type hints. Users cannot set what is `reserved`."""
    try:
        hints = _hints(target)
    except NameError as error:
        raise ConfigError(f"{where}: a type annotation cannot be resolved: {error}") from error
    known = [name for name in inspect.signature(target).parameters if name not in reserved]
    for key in given:
        if key not in known:
            if not known:
                raise ConfigError(f"{where} takes no options, got {key!r}")
            raise unknown_name_error(f"{where}: option", key, known)
    for key in given:
        if key not in hints:
            raise ConfigError(f"{where}: option {key!r} has no type annotation, so it cannot be checked")
    return {key: coerce(value, hints[key], f"{where}.{key}") for key, value in given.items()}


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    if not inspect.isclass(target):
        return get_type_hints(target)
    # Hints are resolved in the module of the class that declares the field, which may be a base class elsewhere.
    if is_dataclass(target) and set(inspect.signature(target).parameters) <= {field.name for field in fields(target)}:
        return get_type_hints(target)
    return get_type_hints(target.__init__)


def call(target: Callable[..., Any], given: Mapping[str, Any], where: str) -> Any:
    """`target(**given)`, where every mistake becomes a ConfigError."""
    options = check_options(target, given, where)
    missing = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in options
    ]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}")
    try:
        return target(**options)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def coerce(value: Any, hint: Any, where: str) -> Any:
    """`value` as the hinted type, or a ConfigError. TOML has no null: "none" stands for None."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and (value is None or value == "none"):
            return None
        return _first_that_fits(value, [kind for kind in arguments if kind is not type(None)], where)
    if origin is Literal:
        if value not in arguments:
            raise unknown_name_error(where, value, map(str, arguments))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        return tuple(coerce(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    if hint is Any:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{where} must be a finite number, got {value}")
        return float(value)
    plain = origin or hint
    if isinstance(plain, type) and (not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool)):
        raise ConfigError(f"{where} must be {_type_name(plain)}, got {value!r}")
    return value


def _first_that_fits(value: Any, kinds: list[Any], where: str) -> Any:
    for kind in kinds[:-1]:
        try:
            return coerce(value, kind, where)
        except ConfigError:
            continue
    return coerce(value, kinds[-1], where)


def _type_name(kind: type) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", dict: "a table"}
    return "a table" if issubclass(kind, Mapping) else names.get(kind, kind.__name__)
