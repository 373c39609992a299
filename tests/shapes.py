"""Checks calls into the package against their shape annotations.

To check a call takes longer than most of what is called. So a function is checked whenever it is called with argument
types, dtypes or shapes that it was not called with before, and at every hundredth call. COSDEFENSE_THOROUGH=1 checks
every call.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any

import jaxtyping
from torch import Tensor

THOROUGH = "COSDEFENSE_THOROUGH" in os.environ
MAKING = threading.RLock()  # beartype cannot make two checks at once: it fails now and then


def check_calls() -> None:
    """Check the calls of every module of the package that is imported from now on."""
    if not THOROUGH:
        always = jaxtyping.jaxtyped
        calls: dict[object, Counter[object]] = {}  # by code, because local functions are made again and again

        def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
            def decorate(decorated: Any) -> Any:
                if isfunction(decorated):
                    seen = calls.setdefault(decorated.__code__, Counter())
                    return _check_new(decorated, always(typechecker=typechecker), seen)
                if "__dataclass_fields__" in vars(decorated) and isfunction(vars(decorated).get("__init__")):
                    decorated.__init__ = decorate(decorated.__init__)
                    return decorated
                return always(typechecker=typechecker)(decorated)

            return decorate

        jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    jaxtyping.install_import_hook("cosdefense", "beartype.beartype")


@contextmanager
def unchecked() -> Iterator[None]:
    """Leave wrong arguments to the package itself, as outside of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def _check_new(function: Any, check: Callable[[Any], Any], seen: Counter[object]) -> Any:
    checked: Any = None  # made when first needed: to make it takes long, too

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        kind = (*map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
        seen[kind] += 1
        if seen[kind] % 100 != 1:
            return function(*args, **kwargs)
        if checked is None:
            with MAKING:
                checked = checked or check(function)
        return checked(*args, **kwargs)

    return call


def _kind(value: Any) -> object:
    """What annotations say about an argument. A cohort has its updates' shape."""
    tensor = getattr(value, "updates", value)
    return (type(value), tensor.dtype, tensor.shape) if isinstance(tensor, Tensor) else type(value)
