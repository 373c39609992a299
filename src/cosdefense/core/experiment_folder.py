"""The folder of the experiment that is being read: its parts and files may be named relative to it."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

PREFIX = "cosdefense_experiment_"  # of the packages that hold the modules beside an experiment

_folder: ContextVar[Path | None] = ContextVar("experiment_folder", default=None)


@contextmanager
def reading_from(folder: Path | None) -> Iterator[None]:
    """Inside, names and paths may refer to files in this folder."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def experiment_folder() -> Path | None:
    """The folder that is being read from, if there is one."""
    return _folder.get()


def import_module(name: str) -> ModuleType:
    """Import a module: the file beside the experiment if there is one of that name, or else as Python would.

    Each folder becomes a separate package, so that two experiments may each have a `mine.py`. A changed file is
    imported again. Modules beside an experiment import each other relatively: `from . import other`.
    """
    folder = _folder.get()
    if folder is None or not _is_beside(folder, name):
        return importlib.import_module(name)
    importlib.invalidate_caches()  # the file may be younger than what Python remembers of the folder
    return importlib.import_module(f"{package_of(folder)}.{name}")


def written_name(module: str) -> str:
    """A module's name as an experiment's file has it."""
    return module.partition(".")[2] if module.startswith(PREFIX) else module


def package_of(folder: Path) -> str:
    """The package that stands for the Python files of a folder as they are now."""
    folder = folder.resolve()
    digest = hashlib.sha256(str(folder).encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    name = f"{PREFIX}{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        package = ModuleType(name, f"The Python files in {folder}.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _is_beside(folder: Path, name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "cosdefense" or not all(part.isidentifier() for part in parts):
        return False
    path = folder.joinpath(*parts)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
