"""Reads a dataset from a folder of images: one folder for each class."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8

from ..catalog.extras import install_hint
from .dataset import Dataset
from .parsers import DataError, read_file
from .splitting import split_dataset

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
MAX_IMAGE = 1 << 26  # bytes of a file

Pixels = UInt8[np.ndarray, "c h w"]


def read_images(
    path: Path,
    size: int | None = None,
    mode: Literal["RGB", "L"] = "RGB",
    by_client: bool = False,
    test: float = 0.2,
) -> Dataset:
    """`class/image.png`, or `train/class/image.png` and `test/class/image.png`.

    Args:
        path: The folder.
        size: Resize every image to this width and height. None: all have the same size already.
        mode: "RGB" for color, "L" for gray.
        by_client: The first folder names the client: `client/class/image.png`.
        test: The share of every client's images of every class that is held out for testing, where there are no
            folders `train` and `test`.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    levels = [file.relative_to(path).parts[:-1] for file in files]
    is_divided = {level[0] for level in levels if level} == {"train", "test"}
    depth = 1 + is_divided + by_client
    if not files or any(len(level) != depth for level in levels):
        shape = "/".join((*("train|test",) * is_divided, *("client",) * by_client, "class", "image.png"))
        others = [file for file, level in zip(files, levels, strict=True) if len(level) != depth]
        found = others[0].relative_to(path) if others else "none"
        raise DataError(f"{path}: needed images as {shape}, found {found}")
    names = tuple(sorted({level[-1] for level in levels}))
    owners = tuple(sorted({level[-2] for level in levels})) if by_client else ()
    images = _read_all(path, files, size, mode)
    return split_dataset(
        path.name,
        torch.from_numpy(images),
        torch.tensor([names.index(level[-1]) for level in levels]),
        test=torch.tensor([level[0] == "test" for level in levels]) if is_divided else test,
        classes=names,
        clients=owners,
        owners=torch.tensor([owners.index(level[-2]) for level in levels]) if by_client else None,
    )


def _read_all(path: Path, files: Sequence[Path], size: int | None, mode: str) -> UInt8[np.ndarray, "m c h w"]:
    images = [decode_image(read_file(file, MAX_IMAGE), str(file), size, mode) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            first, other = (f"{shape[2]} × {shape[1]}" for shape in (images[0].shape, image.shape))
            raise DataError(
                f"{path}: needed images of one size, or the option size, found {first} and {other} ({file})"
            )
    return np.stack(images)


def decode_image(data: bytes, where: str, size: int | None, mode: str) -> Pixels:
    """One image of any common format as bytes [channels, height, width]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{where}: needed Pillow, which is not installed: {install_hint('data')}") from error
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            converted = image.convert(mode)
            array = np.asarray(converted if size is None else converted.resize((size, size)))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: needed an image of {', '.join(FORMATS)}, found {error}") from error
    return np.ascontiguousarray(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
