"""Libraries that only some users need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingMonitorExtra(ImportError):
    """A library of an extra is not installed."""


@contextmanager
def missing_extra(extra: str, *modules: str) -> Iterator[None]:
    """Wraps imports of these modules, without which the rest of the package works."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in modules:
            raise
        raise MissingMonitorExtra(
            f"this needs {' and '.join(modules)}, {error.name} was not found: pip install 'cosdefense[{extra}]'"
        ) from error
