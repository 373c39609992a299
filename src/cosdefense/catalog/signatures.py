"""Reads a part's summary, options, defaults and needs from its class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from ..core import Need


def first_line(target: Any) -> str:
    return (inspect.getdoc(target) or "").splitlines()[0]


def description_of(target: Any) -> str:
    """The docstring without its `Args:` section."""
    before, _, after = _split(inspect.getdoc(target) or "")
    return "\n\n".join(filter(None, (before.strip(), after.strip())))


def explanations_of(target: Any) -> dict[str, str]:
    """What the `Args:` section of a docstring says about each option; a class also has what its bases say."""
    explained = dict[str, str]()
    for owner in reversed(target.__mro__) if inspect.isclass(target) else [target]:
        own = owner.__dict__.get("__doc__") if inspect.isclass(owner) else owner.__doc__
        _, section, _ = _split(inspect.cleandoc(own or ""))
        entries = re.findall(r"^    (\w+): (.+(?:\n     .+)*)", section, re.MULTILINE)
        explained |= {name: " ".join(text.split()) for name, text in entries}
    return explained


def _split(docstring: str) -> tuple[str, str, str]:
    """What is before, in and after the section, which ends where a line is no longer indented."""
    # By hand: this one section is all that is read here, and a docstring parser would be another dependency.
    before, found, rest = docstring.partition("\nArgs:\n")
    if not found:
        return docstring, "", ""
    end = re.search(r"^(?=\S)", rest, re.MULTILINE)
    return before, rest[: end.start() if end else None], rest[end.start() if end else len(rest) :]


def options_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Options and their defaults."""
    parameters = inspect.signature(target).parameters
    return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}


def required_by(target: Callable[..., Any]) -> list[str]:
    """Options without a default. `shape` and `n_outputs` of a model come from the data, not from the user."""
    parameters = inspect.signature(target).parameters
    given = ("shape", "n_outputs")
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in given]


def needs_of(target: Any) -> frozenset[Need]:
    """A part declares what it needs; a preset needs what its parts do."""
    has_needs: Any = target if inspect.isclass(target) else target()
    needs: frozenset[Need] = has_needs.needs
    return needs
