"""The forms in which datasets are published: how to find, verify and read the files of each."""

from __future__ import annotations

import fnmatch
import io
import os
import re
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from .parsers import (
    DataError,
    Progress,
    Split,
    check_digest,
    check_size,
    convert_read_errors,
    parse_idx,
    parse_jpeg,
    read_file,
)

MAX_FILE = 1 << 26  # bytes; the largest file, MNIST's training images, has 47 million
MAX_IMAGE = 1 << 20  # bytes of one JPEG; the largest of CIFAR-10 has under 2 thousand


class Release(ABC):
    """One form in which a dataset is published."""

    @abstractmethod
    def find(self, folder: Path) -> Path | None:
        """What would be read if the dataset lies in `folder`. Looks at names only."""

    @abstractmethod
    def missing(self, folder: Path) -> list[str]:
        """The files to download into `folder`."""

    @abstractmethod
    def verify_file(self, path: Path, name: str) -> None:
        """Compare the digest of one file with that of the official file `name`."""

    @abstractmethod
    def verify(self, path: Path) -> None:
        """Compare the digests of everything that `find` found."""

    @abstractmethod
    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        """Training and test samples from what `find` found, verified."""

    def recognizes(self, path: Path) -> bool:
        """Whether files found under names that other datasets use as well are this dataset's."""
        return True

    @property
    def note(self) -> str:
        """What to write beside numbers measured on this form."""
        return ""


@dataclass(frozen=True)
class IdxFiles(Release):
    """Four IDX files, plain or gzip. Mirrors compress differently, so the digests are of the uncompressed bytes."""

    train_images: str  # SHA-256
    train_labels: str
    test_images: str
    test_labels: str

    @property
    def digests(self) -> dict[str, str]:
        """By official name."""
        return {
            "train-images-idx3-ubyte": self.train_images,
            "train-labels-idx1-ubyte": self.train_labels,
            "t10k-images-idx3-ubyte": self.test_images,
            "t10k-labels-idx1-ubyte": self.test_labels,
        }

    def find(self, folder: Path) -> Path | None:
        return None if self.missing(folder) else folder

    def missing(self, folder: Path) -> list[str]:
        return [f"{name}.gz" for name in self.digests if not os.path.isfile(_find_file(folder, name))]

    def verify_file(self, path: Path, name: str) -> None:
        check_digest(io.BytesIO(read_file(path, MAX_FILE)), self.digests[name.removesuffix(".gz")], str(path))

    def verify(self, path: Path) -> None:
        for name in self.digests:
            self.verify_file(_find_file(path, name), name)

    def recognizes(self, path: Path) -> bool:
        smallest = "t10k-labels-idx1-ubyte"
        try:
            self.verify_file(_find_file(path, smallest), smallest)
        except DataError:
            return False
        return True

    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        return self._split(path, "train"), self._split(path, "t10k")

    def _split(self, folder: Path, part: str) -> Split:
        images = self._array(folder, f"{part}-images-idx3-ubyte", 3)
        labels = self._array(folder, f"{part}-labels-idx1-ubyte", 1)
        return images[:, None], labels.astype(np.int64)

    def _array(self, folder: Path, name: str, n_dimensions: int) -> UInt8[np.ndarray, "..."]:
        path = _find_file(folder, name)
        data = read_file(path, MAX_FILE)
        # Parsed before the digest is compared, because a wrong header says more than a wrong digest.
        array = parse_idx(data, str(path), n_dimensions)
        check_digest(io.BytesIO(data), self.digests[name], str(path))
        return array


@dataclass(frozen=True)
class Packed(Release):
    """A tar archive, or the folder it unpacks to. Only the archive has a digest."""

    archive: str
    sha256: str
    folder: str

    @property
    @abstractmethod
    def patterns(self) -> tuple[str, ...]:
        """The files inside; every pattern matches some."""

    def find(self, folder: Path) -> Path | None:
        if os.path.isfile(folder / self.archive):
            return folder / self.archive
        for unpacked in (folder / self.folder, folder):
            if all(any(unpacked.glob(pattern)) for pattern in self.patterns):
                return unpacked
        return None

    def missing(self, folder: Path) -> list[str]:
        return [] if self.find(folder) else [self.archive]

    def verify_file(self, path: Path, name: str) -> None:
        with convert_read_errors(path), path.open("rb") as file:
            check_digest(file, self.sha256, str(path))

    def verify(self, path: Path) -> None:
        if not path.is_dir():
            self.verify_file(path, self.archive)

    def members(self, path: Path, limit: int) -> list[tuple[str, bytes]]:
        """Names and contents of the files inside, sorted. An archive is read where it lies, nothing is unpacked."""
        if path.is_dir():
            files = [file for pattern in self.patterns for file in path.glob(pattern)]
            return sorted((file.relative_to(path).as_posix(), read_file(file, limit)) for file in files)
        wanted = re.compile("|".join(map(fnmatch.translate, self.patterns)))
        found: list[tuple[str, bytes]] = []
        with convert_read_errors(path), path.open("rb") as file:
            check_digest(file, self.sha256, str(path))
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                for member in archive:
                    name = member.name.removeprefix("./").removeprefix(f"{self.folder}/")
                    content = archive.extractfile(member) if wanted.match(name) and member.isfile() else None
                    if content:
                        found.append((name, check_size(content.read(limit + 1), limit, f"{path}: {name}")))
        return sorted(found)


@dataclass(frozen=True)
class CifarBatches(Packed):
    """CIFAR-10 as its authors publish it: five training batches and a test batch."""

    suffix: str  # of the batches' names
    parse: Callable[[bytes, str], Split]

    @property
    def patterns(self) -> tuple[str, ...]:
        return f"data_batch_[0-9]{self.suffix}", f"test_batch{self.suffix}"

    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        *train, test = [self.parse(data, f"{path}: {name}") for name, data in self.members(path, MAX_FILE)]
        images, labels = zip(*train, strict=True)
        return (np.concatenate(images), np.concatenate(labels)), test


@dataclass(frozen=True)
class JpegFolders(Packed):
    """Images in train/<class>/ and test/<class>/."""

    classes: tuple[str, ...]
    size: tuple[int, int]  # width and height
    title: str  # for the note: JPEG changes the pixels, so results are not those of the original

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(f"{part}/{label}/*.jpg" for part in ("train", "test") for label in self.classes)

    @property
    def note(self) -> str:
        return f"{self.title} (JPEG)"

    def read(self, path: Path, progress: Progress | None = None) -> tuple[Split, Split]:
        members = self.members(path, MAX_IMAGE)
        images: dict[str, list[UInt8[np.ndarray, "3 h w"]]] = {"train": [], "test": []}
        labels: dict[str, list[int]] = {"train": [], "test": []}
        for done, (name, data) in enumerate(members, start=1):
            part, label = name.split("/")[:2]
            images[part].append(parse_jpeg(data, f"{path}: {name}", self.size))
            labels[part].append(self.classes.index(label))
            if progress and (done % 500 == 0 or done == len(members)):
                progress(f"decoding {path.name}", done, len(members))
        train, test = ((np.stack(images[part]), np.array(labels[part], np.int64)) for part in ("train", "test"))
        return train, test


def _find_file(folder: Path, name: str) -> Path:
    """The file under any of its usual names: a dash or a dot before "idx", plain or gzip."""
    spellings = [f"{name}{suffix}" for suffix in ("", ".gz")]
    files = [folder / spelling for plain in spellings for spelling in (plain, plain.replace("-idx", ".idx"))]
    return next((file for file in files if os.path.isfile(file)), files[0])
