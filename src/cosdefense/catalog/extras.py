"""Libraries that only some users need: the extras of the package, and what is said where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtra(ImportError):
    """A library of an extra is not installed. The message names it and how to install it."""


def install_hint(extra: str) -> str:
    """How to install an extra. The package is on no index, so the command is one for a checkout."""
    return f"in a checkout of cosdefense, pip install -c constraints.txt -e '.[{extra}]'"


@contextmanager
def extra_libraries(extra: str, what: str, *modules: str) -> Iterator[None]:
    """Wraps imports of these modules, without which the rest of the package works. `what` needs them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in modules:
            raise
        raise MissingExtra(
            f"{what} needs {', '.join(modules)}; {error.name} was not found: {install_hint(extra)}"
        ) from error
