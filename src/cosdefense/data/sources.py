"""Finds out what a dataset of one's own is, a file, a folder or a function, and reads it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..catalog.imports import import_part
from ..catalog.options import ConfigError, check_options, unknown_name_error
from ..core.experiment_folder import experiment_folder
from .array_file import read_arrays
from .csv_table import read_csv
from .dataset import Dataset
from .huggingface import is_saved_dataset, read_saved_dataset
from .image_folder import read_images
from .known_datasets import DATASETS

READERS: dict[str, Callable[..., Dataset]] = {".csv": read_csv, ".npz": read_arrays}


def read_source(name: str, options: Mapping[str, Any]) -> Dataset:
    """Read a dataset that is not in the catalog; options that its reader does not take are an error."""
    if ":" in name:
        make = import_part(name, Dataset, "dataset")
        dataset = make(**_check(make, options, f"dataset {name}", ()))
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"dataset {name!r} must give a Dataset, got {type(dataset).__name__}")
        return dataset
    path = _find(name)
    read = _choose_reader(path)
    return read(path, **_check(read, options, f"dataset {name}", ("path",)))


def _check(
    read: Callable[..., Dataset], options: Mapping[str, Any], where: str, reserved: tuple[str, ...]
) -> dict[str, Any]:
    given = check_options(read, options, where, reserved)
    parameters = inspect.signature(read).parameters
    needed = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    missing = [name for name in needed if name not in given and name not in reserved]
    if missing:
        example = ", ".join(f'{option} = "…"' for option in missing)
        name = where.removeprefix("dataset ")
        raise ConfigError(f'{where} needs {", ".join(missing)}: write dataset = {{ name = "{name}", {example} }}')
    return given


def _choose_reader(path: Path) -> Callable[..., Dataset]:
    if path.is_dir():
        return read_saved_dataset if is_saved_dataset(path) else read_images
    if path.suffix.lower() not in READERS:
        known = ", ".join(READERS)
        raise ConfigError(f"dataset {path} must be a file of kind {known}, or a folder, got {path.suffix or 'no kind'}")
    return READERS[path.suffix.lower()]


def _find(name: str) -> Path:
    """A file or folder beside the experiment, or else relative to the current folder."""
    path = Path(name).expanduser()
    folder = experiment_folder()
    places = [place / path for place in dict.fromkeys((folder, Path())) if place is not None]
    for place in places:
        if place.exists():
            return place
    if path.suffix.lower() in READERS or len(path.parts) > 1:
        looked = ", ".join(str(place.absolute()) for place in places)
        raise ConfigError(f"dataset {name!r} was not found: looked for {looked}")
    raise unknown_name_error("dataset", name, DATASETS)
