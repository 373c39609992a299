"""Reads a dataset that Hugging Face's `datasets` saved with `save_to_disk`: Arrow files and their description.

Only polars is needed: the Arrow files hold the samples, and two JSON files say which columns are classes or images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..catalog.extras import install_hint
from .array_file import to_inputs, to_targets
from .dataset import Dataset
from .image_folder import MAX_IMAGE, decode_image
from .parsers import DataError
from .splitting import split_dataset

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"

Columns = Mapping[str, list[Any]]  # by name


def is_saved_dataset(path: Path) -> bool:
    """Whether this folder was written by `save_to_disk`."""
    return (path / SPLITS).is_file() or (path / STATE).is_file()


def read_saved_dataset(
    path: Path,
    label: str = "label",
    features: tuple[str, ...] = (),
    client: str | None = None,
    test: float | str = "test",
    size: int | None = None,
    mode: Literal["RGB", "L"] = "RGB",
) -> Dataset:
    """One or several columns as inputs, one as the target.

    A column of images or of lists (token ids, vectors, all of one length) is the input by itself. Several columns of
    numbers become one vector.

    Args:
        path: The folder.
        label: The column with the target.
        features: The columns that are inputs. Empty: all others.
        client: The column that says whose sample it is. None: nobody's in particular.
        test: The split of a `DatasetDict` to test on; or the share of all samples to hold out, which a single dataset
            needs (by default 0.2).
        size: Resize every image to this width and height. None: all have the same size already.
        mode: "RGB" for images in color, "L" for gray.
    """
    train, held, names = _read_splits(path, test)
    features = features or tuple(name for name in train if name not in (label, client))
    for name in (label, *features, *((client,) if client else ())):
        if name not in train or (held is not None and name not in held):
            raise DataError(f"{path}: needed a column {name!r}, found {', '.join(train)}")
    parts = [part for part in (train, held) if part is not None]
    inputs = [_to_inputs(path, part, features, size, mode) for part in parts]
    targets, classes = _to_targets([part[label] for part in parts], names.get(label, ()))
    words = [list(map(str, part[client])) if client else [] for part in parts]
    clients = tuple(sorted({word for part in words for word in part}))
    owners = [torch.tensor([clients.index(word) for word in part]) if client else None for part in words]
    if held is None:
        share = test if isinstance(test, float) else 0.2
        return split_dataset(
            path.name, inputs[0], targets[0], test=share, classes=classes, clients=clients, owners=owners[0]
        )
    return Dataset(
        path.name, inputs[0], targets[0], inputs[1], targets[1], classes, clients=clients, train_clients=owners[0],
        test_clients=owners[1],
    )  # fmt: skip


def _read_splits(path: Path, test: float | str) -> tuple[Columns, Columns | None, Mapping[str, Sequence[str]]]:
    """The columns for training and for testing, and the names of the classes of each column that has some."""
    if not (path / SPLITS).is_file():
        columns, names = _read_one(path)
        return columns, None, names
    splits = _read_json(path / SPLITS).get("splits") or []
    others = [name for name in splits if name != test]
    if isinstance(test, str) and test not in splits:
        raise DataError(f"{path}: needed a split {test!r} to test on, found {', '.join(map(str, splits))}")
    train = "train" if "train" in others else next(iter(others), None)
    if not isinstance(train, str):
        raise DataError(f"{path}: needed a split to train on, found {', '.join(map(str, splits))}")
    columns, names = _read_one(path / Path(train).name)
    return columns, _read_one(path / Path(test).name)[0] if isinstance(test, str) else None, names


def _read_one(path: Path) -> tuple[Columns, Mapping[str, Sequence[str]]]:
    try:
        import polars
    except ImportError as error:
        hint = install_hint("datasets")
        raise DataError(f"{path}: needed polars, which is not installed: {hint}") from error
    files = [Path(entry["filename"]).name for entry in _read_json(path / STATE)["_data_files"]]
    try:
        table = polars.concat([polars.read_ipc_stream(path / name) for name in files])
    except (OSError, polars.exceptions.PolarsError) as error:
        raise DataError(f"{path}: needed readable Arrow files, found {error}") from error
    features = _read_json(path / INFO).get("features") or {}
    names = {name: tuple(entry["names"]) for name, entry in features.items() if entry.get("_type") == "ClassLabel"}
    return {name: table[name].to_list() for name in table.columns}, names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: needed a JSON file of a saved dataset, found {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: needed a JSON object, found {type(content).__name__}")
    return content


def _to_inputs(path: Path, part: Columns, features: Sequence[str], size: int | None, mode: str) -> Tensor:
    if len(features) == 1:
        return to_inputs(_to_array(path, features[0], part[features[0]], size, mode))
    columns = [_to_array(path, name, part[name], size, mode) for name in features]
    for name, column in zip(features, columns, strict=True):
        if column.ndim != 1:
            raise DataError(
                f"{path}, column {name!r}: needed single numbers beside other columns; name one in features"
            )
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


def _to_array(path: Path, name: str, values: list[Any], size: int | None, mode: str) -> Any:
    where = f"{path}, column {name!r}"
    if values and isinstance(values[0], dict) and isinstance(values[0].get("bytes"), bytes):
        if any(len(value["bytes"]) > MAX_IMAGE for value in values):
            raise DataError(f"{where}: needed images of at most {MAX_IMAGE} bytes, found more")
        values = [decode_image(value["bytes"], where, size, mode) for value in values]
    try:
        array = np.array(values)
    except ValueError as error:
        raise DataError(f"{where}: needed lists or images of one size, found others") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: needed numbers, lists of numbers or images, found {type(values[0]).__name__}")
    return array


def _to_targets(columns: Sequence[Any], names: Sequence[str]) -> tuple[list[Tensor], tuple[str, ...]]:
    values = [np.array(column) for column in columns]
    if all(part.dtype.kind == "f" for part in values):
        return [to_targets(part) for part in values], ()
    if all(part.dtype.kind in "iu" for part in values):
        names = names or tuple(map(str, range(1 + max(int(part.max()) for part in values))))
        return [to_targets(part) for part in values], tuple(names)
    words = sorted({str(word) for part in values for word in part.tolist()})
    return [torch.tensor([words.index(str(word)) for word in part.tolist()]) for part in values], tuple(words)
