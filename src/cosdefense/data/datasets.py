"""The datasets by name: found on disk or downloaded, verified, read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ..catalog.options import unknown_name_error
from .download import download as download_file
from .formats import DataError, Progress, Split
from .releases import Release
from .specifications import DATASETS, Specification

DEBIAN = Path("/usr/share/datasets")  # where Debian's dataset-fashion-mnist puts its files


@dataclass(frozen=True)
class Dataset:
    """Labeled images, for training and for testing."""

    name: str
    train_images: UInt8[Tensor, "m c h w"]
    train_labels: Int64[Tensor, " m"]
    test_images: UInt8[Tensor, "k c h w"]
    test_labels: Int64[Tensor, " k"]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    note: str = ""  # what must stand next to any number measured on it

    @property
    def n_classes(self) -> int:
        return len(self.classes)


def load(name: str, data_dir: Path | None = None, progress: Progress | None = None, download: bool = True) -> Dataset:
    """The dataset from disk, or from the network where it is on no disk and `download` allows it."""
    specification = _specified(name)
    release, path = _obtained(specification, data_dir, progress, download)
    train, test = release.read(path, progress)
    return Dataset(
        name,
        *_checked(train, specification, specification.n_train, f"{path} (training)"),
        *_checked(test, specification, specification.n_test, f"{path} (test)"),
        specification.classes,
        specification.mean,
        specification.std,
        release.note,
    )


def where(name: str, data_dir: Path | None = None) -> Path | None:
    """The file or folder that would be read. None: it would have to be downloaded."""
    found = _found(_specified(name), data_dir)
    return found[1] if found else None


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The file or folder that would be read, downloaded if it is on no disk, its digests compared in any case."""
    release, path = _obtained(_specified(name), data_dir, progress, download=True)
    release.verify(path)
    return path


def _specified(name: str) -> Specification:
    if name not in DATASETS:
        raise unknown_name_error("dataset", name, DATASETS)
    return DATASETS[name]


def _obtained(
    specification: Specification, data_dir: Path | None, progress: Progress | None, download: bool
) -> tuple[Release, Path]:
    found = _found(specification, data_dir)
    if found:
        return found
    release, folder = specification.releases[0], _target(specification.name, data_dir)
    missing = release.missing(folder)
    if not download:
        raise _absent(specification, data_dir, "it may be downloaded from", "\n".join(specification.mirrors))
    for file in missing:
        urls = [mirror + file for mirror in specification.mirrors]
        verify = partial(release.verify_file, name=file)
        try:
            download_file(urls, folder / file, verify, specification.max_download, progress)
        except DataError as error:
            raise _absent(specification, data_dir, "downloading failed", str(error)) from error
    return release, release.find(folder) or folder


def _found(specification: Specification, data_dir: Path | None) -> tuple[Release, Path] | None:
    for folder, is_named in _folders(specification.name, data_dir):
        for release in specification.releases:
            path = release.find(folder)
            # MNIST and Fashion-MNIST use the same file names: without a folder of that name the digest decides.
            if path and (is_named or release.recognizes(path)):
                return release, path
    return None


def _folders(name: str, data_dir: Path | None) -> Iterator[tuple[Path, bool]]:
    """Where to look, in order, and whether the folder bears the dataset's name."""
    roots = (_expanded(data_dir), _shared(), _cache(), DEBIAN)
    for root in dict.fromkeys(root for root in roots if root):
        yield root / name, True
        yield root, False


def _target(name: str, data_dir: Path | None) -> Path:
    """The folder to download into."""
    shared = _shared()
    if shared and not _is_writable(shared / name):
        shared = None
    return (_expanded(data_dir) or shared or _cache()) / name


def _shared() -> Path | None:
    return _expanded(os.environ.get("COSDEFENSE_DATA"))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cosdefense"


def _expanded(folder: Path | str | None) -> Path | None:
    return Path(folder).expanduser() if folder else None


def _is_writable(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return os.access(existing, os.W_OK | os.X_OK)


def _absent(specification: Specification, data_dir: Path | None, what_else: str, details: str) -> DataError:
    name, target = specification.name, _target(specification.name, data_dir)
    looked_in = []
    for folder, _ in _folders(name, data_dir):
        found = any(release.find(folder) for release in specification.releases)
        looked_in.append(f"{folder}{' (these files are damaged or of another dataset)' if found else ''}")
    files = "\nor ".join(", ".join(release.missing(target)) for release in specification.releases)
    paragraphs = {"looked in": "\n".join(looked_in), f"needed in {target}": files, what_else: details}
    text = "\n".join(f"{head}:\n{indent(body, '  ')}" for head, body in paragraphs.items())
    return DataError(f"{name} was not found\n{text}")


def _checked(
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
