"""Every call into the package is checked against its shape annotations; what recurs a thousand times, now and then.

COSDEFENSE_THOROUGH checks that too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from types import CodeType
from typing import Any, TypeVar

import jaxtyping

T = TypeVar("T")

THOROUGH = "COSDEFENSE_THOROUGH" in os.environ
OFTEN = 20  # checked so many times, a function that is made anew by every call of another need not be checked again


def check_calls() -> None:
    """From now on, of every module of the package that is imported."""
    wrap, made = jaxtyping.jaxtyped, Counter[CodeType]()

    def wrapped(*, typechecker: Any) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            if "<locals>" in function.__qualname__ and hasattr(function, "__code__"):
                made[function.__code__] += 1  # to wrap it takes longer than most of what such functions do
            often = made[getattr(function, "__code__", None)] > OFTEN  # type: ignore[index]
            return function if often and not THOROUGH else wrap(function, typechecker=typechecker)

        return decorate

    jaxtyping.jaxtyped = wrapped  # type: ignore[assignment]
    jaxtyping.install_import_hook("cosdefense", "beartype.beartype")


def sparingly_checked(rounds: Iterable[T]) -> Iterator[T]:
    """The same rounds of a long simulation, of which the first ten and every tenth are checked: shapes recur."""
    going_on = iter(rounds)
    for number in count():
        jaxtyping.config.update("jaxtyping_disable", number >= 10 and number % 10 != 0 and not THOROUGH)
        try:
            round_ = next(going_on)
        except StopIteration:
            return
        finally:
            jaxtyping.config.update("jaxtyping_disable", False)
        yield round_
