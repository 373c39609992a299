"""Parsers from the bytes of a dataset's files to arrays. They check everything they rely on."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import math
import pickletools
import struct
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from ..catalog.extras import install_hint

Split = tuple[UInt8[np.ndarray, "_ _ _ _"], Int64[np.ndarray, " _"]]  # images [m, c, h, w] and their labels
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, out of how much (0: unknown)

INTEGERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1")  # pickle's tokens; others with a number are for its memo


class DataError(RuntimeError):
    """A dataset is missing or not as it should be. The message names the file, what was needed and what was found."""


def parse_idx(data: bytes, where: str, n_dimensions: int) -> UInt8[np.ndarray, "..."]:
    """An IDX file of unsigned bytes: a magic number, the sizes as big-endian 32-bit integers, the payload."""
    magic, header = bytes([0, 0, 8, n_dimensions]), 4 + 4 * n_dimensions
    if data[:4] != magic:
        raise DataError(f"{where}: needed the magic number {magic.hex()}, found {data[:4].hex() or 'an empty file'}")
    if len(data) < header:
        raise DataError(f"{where}: needed a header of {header} bytes, found {len(data)}")
    sizes = struct.unpack(f">{n_dimensions}I", data[4:header])
    if len(data) - header != math.prod(sizes):
        product = " × ".join(map(str, sizes))
        raise DataError(f"{where}: needed the {product} bytes its header promises, found {len(data) - header}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(sizes)


def parse_cifar_binary(data: bytes, where: str) -> Split:
    """Records of a label and 3 × 32 × 32 pixels."""
    if not data or len(data) % 3073:
        raise DataError(f"{where}: needed a multiple of 3073 bytes, found {len(data)}")
    records = np.frombuffer(data, np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def parse_cifar_python(data: bytes, where: str) -> Split:
    """A pickled batch, read token by token: nothing is unpickled, so nothing in it can run."""
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
        raise DataError(f"{where}: needed Pillow, which is not installed: {install_hint('data')}") from error
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
    with convert_read_errors(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return check_size(file.read(limit + 1), limit, str(path))


def check_digest(file: io.BufferedReader | io.BytesIO, sha256: str, where: str) -> None:
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DataError(f"{where}: needed SHA-256 {sha256}, found {found}: a damaged file or another one")


def check_size(data: bytes, limit: int, where: str) -> bytes:
    if len(data) > limit:
        raise DataError(f"{where}: needed at most {limit} bytes, found more")
    return data


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise DataError(f"{path}: needed a readable file, found {error}") from error
