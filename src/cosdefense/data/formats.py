"""Finds, verifies and reads the published forms of the datasets, and trusts none of their files."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import lzma
import math
import os
import pickletools
import re
import struct
import tarfile
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

Split = tuple[UInt8[np.ndarray, "_ _ _ _"], Int64[np.ndarray, " _"]]  # images [m, c, h, w] and their labels
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, out of how much (0: unknown)

MAX_FILE = 1 << 26  # bytes; the largest file, MNIST's training images, has 47 million
MAX_IMAGE = 1 << 20  # bytes of one JPEG; the largest of CIFAR-10 has under 2 thousand
INTEGERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1")  # pickle's tokens; others with a number are for its memo


class DataError(RuntimeError):
    """A dataset that is absent or not what it should be: names the file, what was needed and what was found."""


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
        """What must stand next to any number measured on this form."""
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
        return [f"{name}.gz" for name in self.digests if not os.path.isfile(_spelled(folder, name))]

    def verify_file(self, path: Path, name: str) -> None:
        check_digest(io.BytesIO(read_file(path, MAX_FILE)), self.digests[name.removesuffix(".gz")], str(path))

    def verify(self, path: Path) -> None:
        for name in self.digests:
            self.verify_file(_spelled(path, name), name)

    def recognizes(self, path: Path) -> bool:
        smallest = "t10k-labels-idx1-ubyte"
        try:
            self.verify_file(_spelled(path, smallest), smallest)
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
        path = _spelled(folder, name)
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
        with _readable(path), path.open("rb") as file:
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
        with _readable(path), path.open("rb") as file:
            check_digest(file, self.sha256, str(path))
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                for member in archive:
                    name = member.name.removeprefix("./").removeprefix(f"{self.folder}/")
                    content = archive.extractfile(member) if wanted.match(name) and member.isfile() else None
                    if content:
                        found.append((name, _bounded(content.read(limit + 1), limit, f"{path}: {name}")))
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


def parse_idx(data: bytes, where: str, n_dimensions: int) -> UInt8[np.ndarray, "..."]:
    """An IDX file of unsigned bytes: a magic number, the sizes as big-endian 32-bit integers, the payload."""
    magic, header = bytes([0, 0, 8, n_dimensions]), 4 + 4 * n_dimensions
    if data[:4] != magic:
        raise DataError(f"{where}: needed the magic number {magic.hex()}, found {data[:4].hex() or 'an empty file'}")
    if len(data) < header:
        raise DataError(f"{where}: needed a header of {header} bytes, found {len(data)}")
    sizes = struct.unpack(f">{n_dimensions}I", data[4:header])
    if len(data) - header != math.prod(sizes):
        spoken = " × ".join(map(str, sizes))
        raise DataError(f"{where}: needed the {spoken} bytes its header promises, found {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(sizes)


def parse_cifar_binary(data: bytes, where: str) -> Split:
    """Records of a label and 3 × 32 × 32 pixels."""
    if not data or len(data) % 3073:
        raise DataError(f"{where}: needed a multiple of 3073 bytes, found {len(data)}")
    records = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def parse_cifar_python(data: bytes, where: str) -> Split:
    """A pickled batch, picked from the pickle's tokens: nothing is unpickled, so nothing in it can run."""
    pixels: list[bytes] = []
    labels: list[int] = []
    in_labels = False
    try:
        with warnings.catch_warnings(action="ignore"):  # about odd escapes in hostile files
            for opcode, operand, _ in pickletools.genops(data):
                if isinstance(operand, str | bytes | bytearray):  # a key, a file name or the pixels: ends the labels
                    in_labels = operand in ("labels", b"labels")
                    if operand and len(operand) % 3072 == 0:
                        pixels.append(operand.encode("latin-1") if isinstance(operand, str) else bytes(operand))
                elif in_labels and isinstance(operand, int) and opcode.name in INTEGERS:
                    labels.append(operand)
    except ValueError as error:
        raise DataError(f"{where}: needed a pickled batch, found {error}") from error
    if len(pixels) != 1:
        raise DataError(f"{where}: needed one array of 3072 bytes per image, found {len(pixels)}")
    if len(labels) != len(pixels[0]) // 3072:
        raise DataError(f"{where}: needed {len(pixels[0]) // 3072} labels, one per image, found {len(labels)}")
    if not all(0 <= label < 256 for label in labels):
        raise DataError(f"{where}: needed labels from 0 to 255, found {min(labels)} to {max(labels)}")
    return np.frombuffer(pixels[0], np.uint8).reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def parse_jpeg(data: bytes, where: str, size: tuple[int, int]) -> UInt8[np.ndarray, "3 h w"]:
    """One RGB image. Its size is compared before a pixel is decoded."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{where}: needed Pillow, which is not installed: pip install 'cosdefense[data]'") from error
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            found = f"{image.mode} of {image.width} × {image.height}"
            if image.size == size and image.mode == "RGB":
                return np.asarray(image).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        found = str(error)
    raise DataError(f"{where}: needed a JPEG image, RGB of {size[0]} × {size[1]}, found {found}")


def read_file(path: Path, limit: int) -> bytes:
    """All of a file, gunzipped if its name says so. Never more than `limit` bytes, whatever it would expand to."""
    with _readable(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return _bounded(file.read(limit + 1), limit, str(path))


def check_digest(file: io.BufferedReader | io.BytesIO, sha256: str, where: str) -> None:
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataError(f"{where}: needed SHA-256 {sha256}, found {found}: a damaged file or another one")


def _bounded(data: bytes, limit: int, where: str) -> bytes:
    if len(data) > limit:
        raise DataError(f"{where}: needed at most {limit} bytes, found more")
    return data


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise DataError(f"{path}: needed a readable file, found {error}") from error


def _spelled(folder: Path, name: str) -> Path:
    """The file under any of its usual names: a dash or a dot before "idx", plain or gzip."""
    spellings = [f"{name}{suffix}" for suffix in ("", ".gz")]
    files = [folder / spelling for plain in spellings for spelling in (plain, plain.replace("-idx", ".idx"))]
    return next((file for file in files if os.path.isfile(file)), files[0])
