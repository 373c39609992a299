"""Checks calls into the package against their shape annotations.

To check a call takes longer than most of what is called. So a function is checked whenever it is called with argument
types, dtypes or shapes that it was not called with before, and at every thousandth call. Functions without a shape in
their annotations are left to mypy. COSDEFENSE_THOROUGH=1 checks every call of every function.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from types import FunctionType
from typing import Any

import jaxtyping
import torch
from torch import Tensor

THOROUGH = "COSDEFENSE_THOROUGH" in os.environ
SIMPLE = frozenset(
    {int, float, bool, str, type(None), tuple, list, dict, slice, FunctionType, torch.dtype, torch.device}
)
SHAPED = re.compile(r"\b(Float|Bool|Int|Int64|UInt8)\[|\b(Images|Owners)\b")  # jaxtyping's names, and the package's own
MAKING = threading.RLock()  # beartype cannot make two checks at once: it fails now and then


def check_calls() -> None:
    """Check the calls of every module of the package that is imported from now on."""
    if not THOROUGH:
        always = jaxtyping.jaxtyped
        calls: dict[object, dict[object, int]] = {}  # by code, because local functions are made again and again

        def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
            def decorate(decorated: Any) -> Any:
                if isfunction(decorated):
                    if not SHAPED.search(" ".join(map(str, decorated.__annotations__.values()))):
                        return decorated
                    seen = calls.setdefault(decorated.__code__, {})
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


def _check_new(function: Any, check: Callable[[Any], Any], seen: dict[object, int]) -> Any:
    checked: Any = None  # made when first needed: to make it takes long, too

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        kind: tuple[object, ...] = tuple([_kind(value) for value in args])
        if kwargs:
            kind = (*kind, *kwargs, *map(_kind, kwargs.values()))
        seen[kind] = count = seen.get(kind, 0) + 1
        if count % 1000 != 1:
            return function(*args, **kwargs)
        if checked is None:
            with MAKING:
                checked = checked or check(function)
        return checked(*args, **kwargs)

    return call


def _kind(value: Any) -> object:
    """What annotations say about an argument. A cohort has its updates' shape."""
    # Called millions of times: plain tensors first, and no search for an attribute that the value does not have.
    kind = type(value)
    if kind is Tensor:
        return value.dtype, value.shape
    if kind in SIMPLE:
        return kind
    tensor = getattr(value, "updates", value)
    return (kind, tensor.dtype, tensor.shape) if isinstance(tensor, Tensor) else kind
