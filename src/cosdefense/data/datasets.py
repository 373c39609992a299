"""Datasets by name: those of the catalog are found on disk or downloaded, verified and read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..catalog.options import ConfigError, unknown_name_error
from .dataset import Dataset
from .download import download as download_file
from .known_datasets import DATASETS, Specification
from .parsers import DataError, Progress, Split
from .releases import Release
from .sources import read_source

DEBIAN = Path("/usr/share/datasets")  # where Debian's dataset-fashion-mnist puts its files


def load(
    name: str, data_dir: Path | None = None, progress: Progress | None = None, download: bool = True, **options: Any
) -> Dataset:
    """Read a dataset: one of the catalog by its name, or your own.

    Your own is a file (`table.csv`, `arrays.npz`), a folder of images, a folder that Hugging Face's `datasets` saved,
    or a function that returns a `Dataset`, as "package.module:function". `options` are those of its reader. One of
    the catalog is downloaded if it is not on disk and `download` allows it.
    """
    if name not in DATASETS:
        return read_source(name, options)
    if options:
        raise ConfigError(f"dataset {name} takes no options, got {', '.join(options)}")
    specification = DATASETS[name]
    release, path = _obtain(specification, data_dir, progress, download)
    train, test = release.read(path, progress)
    return Dataset(
        name,
        *_check(train, specification, specification.n_train, f"{path} (training)"),
        *_check(test, specification, specification.n_test, f"{path} (test)"),
        specification.classes,
        specification.mean,
        specification.std,
        release.note,
    )


def where(name: str, data_dir: Path | None = None) -> Path | None:
    """The file or folder that would be read. None: it would have to be downloaded."""
    found = _find(_specification(name), data_dir)
    return None if found is None else found[1]


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the file or folder that would be read. It is downloaded if it is not on disk, and always verified."""
    release, path = _obtain(_specification(name), data_dir, progress, download=True)
    release.verify(path)
    return path


def _specification(name: str) -> Specification:
    if name not in DATASETS:
        raise unknown_name_error("dataset", name, DATASETS)
    return DATASETS[name]


def _obtain(
    specification: Specification, data_dir: Path | None, progress: Progress | None, download: bool
) -> tuple[Release, Path]:
    found = _find(specification, data_dir)
    if found:
        return found
    release, folder = specification.releases[0], _target(specification.name, data_dir)
    missing = release.missing(folder)
    if not download:
        raise _not_found_error(specification, data_dir, "it may be downloaded from", "\n".join(specification.mirrors))
    for file in missing:
        urls = [mirror + file for mirror in specification.mirrors]
        verify = partial(release.verify_file, name=file)
        try:
            download_file(urls, folder / file, verify, specification.max_download, progress)
        except DataError as error:
            raise _not_found_error(specification, data_dir, "downloading failed", str(error)) from error
    return release, release.find(folder) or folder


def _find(specification: Specification, data_dir: Path | None) -> tuple[Release, Path] | None:
    for folder, is_named in _folders(specification.name, data_dir):
        for release in specification.releases:
            path = release.find(folder)
            # MNIST and Fashion-MNIST use the same file names: without a folder of that name the digest decides.
            if path and (is_named or release.recognizes(path)):
                return release, path
    return None


def _folders(name: str, data_dir: Path | None) -> Iterator[tuple[Path, bool]]:
    """Where to look, in order, and whether the folder has the dataset's name."""
    roots = (_expand(data_dir), _shared_folder(), _cache_folder(), DEBIAN)
    for root in dict.fromkeys(root for root in roots if root):
        yield root / name, True
        yield root, False


def _target(name: str, data_dir: Path | None) -> Path:
    """The folder for downloads."""
    shared = _shared_folder()
    if shared and not _is_writable(shared / name):
        shared = None
    return (_expand(data_dir) or shared or _cache_folder()) / name


def _shared_folder() -> Path | None:
    return _expand(os.environ.get("COSDEFENSE_DATA"))


def _cache_folder() -> Path:
    # Not pooch.os_cache: data on disk must be found where pooch is not installed.
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosdefense"


def _expand(folder: Path | str | None) -> Path | None:
    return Path(folder).expanduser() if folder else None


def _is_writable(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return os.access(existing, os.W_OK | os.X_OK)


def _not_found_error(specification: Specification, data_dir: Path | None, what_else: str, details: str) -> DataError:
    name, target = specification.name, _target(specification.name, data_dir)
    looked_in = []
    for folder, _ in _folders(name, data_dir):
        found = any(release.find(folder) for release in specification.releases)
        looked_in.append(f"{folder}{' (these files are damaged or of another dataset)' if found else ''}")
    files = "\nor ".join(", ".join(release.missing(target)) for release in specification.releases)
    paragraphs = {"looked in": "\n".join(looked_in), f"needed in {target}": files, what_else: details}
    text = "\n".join(f"{head}:\n{indent(body, '  ')}" for head, body in paragraphs.items())
    return DataError(f"{name} was not found\n{text}")


def _check(
    split: Split, specification: Specification, count: int, source: str
) -> tuple[UInt8[Tensor, "m c h w"], Int64[Tensor, " m"]]:
    images, labels = split
    shape, last = (count, *specification.shape), len(specification.classes) - 1
    if images.shape != shape:
        raise DataError(f"{source}: needed images of shape {shape}, found {images.shape}")
    if labels.shape != (count,):
        raise DataError(f"{source}: needed {count} labels, found {len(labels)}")
    if labels.min() < 0 or labels.max() > last:
        raise DataError(f"{source}: needed labels from 0 to {last}, found {labels.min()} to {labels.max()}")
    return torch.tensor(images), torch.tensor(labels)
