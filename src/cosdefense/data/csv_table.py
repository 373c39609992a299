"""Reads a dataset from a table, `table.csv`: one sample a line, the names of the columns in the first."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dataset import Dataset
from .parsers import DataError
from .splitting import split_dataset

MAX_CATEGORIES = 100  # of a column of words; a column with more is more likely a name or a text

Floats = NDArray[np.float32]


def read_csv(
    path: Path,
    label: str,
    client: str | None = None,
    test: float | str = 0.2,
    kind: Literal["auto", "classes", "numbers"] = "auto",
    drop: tuple[str, ...] = (),
    delimiter: str = ",",
) -> Dataset:
    """Every column is a feature, but for those named here.

    Columns of numbers are standardized, columns of words become one column of zeros and ones for each word.

    Args:
        path: The file, in UTF-8.
        label: The column with the target.
        client: The column that says whose sample it is, such as "hospital". None: nobody's in particular.
        test: The share of every client's samples of every class that is held out for testing; or the column in which
            the word "test" stands for these samples.
        kind: What the label is: "classes" or "numbers" to predict. "auto": words and whole numbers are classes.
        drop: Columns that are no features.
        delimiter: What stands between two columns.
    """
    columns = _read_columns(path, delimiter)
    for name in filter(None, (label, client, *drop, test if isinstance(test, str) else None)):
        if name not in columns:
            raise DataError(f"{path}: needed a column {name!r}, found {', '.join(columns)}")
    special = {label, client, test, *drop}
    features = [_make_feature(path, name, column) for name, column in columns.items() if name not in special]
    if not features:
        raise DataError(f"{path}: needed at least one column of features beside {', '.join(map(str, special))}")
    targets, classes = _read_targets(path, label, columns[label], kind)
    clients = tuple(sorted(set(columns[client]))) if client else ()
    number = {name: i for i, name in enumerate(clients)}
    held = torch.tensor([word == "test" for word in columns[test]]) if isinstance(test, str) else test
    dataset = split_dataset(
        path.name,
        torch.from_numpy(np.concatenate([feature.values for feature in features], axis=1)),
        targets,
        test=held,
        classes=classes,
        clients=clients,
        owners=torch.tensor([number[name] for name in columns[client]]) if client else None,
    )
    return _standardize(dataset, torch.tensor([feature.is_number for feature in features for _ in feature.values[0]]))


@dataclass(frozen=True)
class Feature:
    """One column of the file, as one or several columns of numbers."""

    values: Floats
    is_number: bool


def _read_columns(path: Path, delimiter: str) -> dict[str, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (OSError, UnicodeDecodeError, csv.Error, TypeError, ValueError) as error:
        raise DataError(f"{path}: needed a table in UTF-8 with names in its first line, found {error}") from error
    if len(set(head)) != len(head):
        raise DataError(f"{path}: needed different names of columns, found {', '.join(head)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise DataError(f"{path}, line {number}: needed {len(head)} columns, found {len(row)}")
    if not rows:
        raise DataError(f"{path}: needed samples below the names of columns, found none")
    return {name: [row[index].strip() for row in rows] for index, name in enumerate(head)}


def _make_feature(path: Path, name: str, column: Sequence[str]) -> Feature:
    numbers = _read_numbers(column)
    if numbers is not None:
        return Feature(numbers[:, None], is_number=True)
    words = sorted(set(column))
    n_numbers = sum(_read_numbers([word]) is not None for word in words)
    if n_numbers > len(words) // 2:
        line, found = next((i, word) for i, word in enumerate(column, start=2) if _read_numbers([word]) is None)
        raise DataError(f"{path}, line {line}, column {name!r}: needed a finite number, found {found!r}")
    if len(words) > MAX_CATEGORIES:
        found = f"{len(words)} different words"
        raise DataError(f"{path}, column {name!r}: needed at most {MAX_CATEGORIES} words, found {found}: drop it")
    return Feature(np.array([[word == cell for word in words] for cell in column], np.float32), is_number=False)


def _read_numbers(column: Sequence[str]) -> Floats | None:
    try:
        numbers = np.array([float(cell) for cell in column], np.float64)
    except ValueError:
        return None
    return numbers.astype(np.float32) if np.isfinite(numbers).all() else None


def _read_targets(path: Path, label: str, column: Sequence[str], kind: str) -> tuple[Tensor, tuple[str, ...]]:
    numbers = _read_numbers(column)
    are_whole = numbers is not None and bool((numbers == numbers.round()).all())
    if kind == "numbers" or (kind == "auto" and numbers is not None and not are_whole):
        if numbers is None:
            raise DataError(f"{path}, column {label!r}: needed finite numbers, found {column[0]!r} and others")
        return torch.from_numpy(numbers), ()
    names = sorted(set(column), key=float if are_whole else str)
    if len(names) < 2 or "" in names:
        raise DataError(f"{path}, column {label!r}: needed at least two classes and no empty cell, found {names}")
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[cell] for cell in column]), tuple(names)


def _standardize(dataset: Dataset, is_number: Tensor) -> Dataset:
    """Mean and deviation of the training samples, for columns of numbers; models get the standardized ones."""
    inputs = dataset.train_inputs.double()
    mean = torch.where(is_number, inputs.mean(dim=0), 0.0)
    std = torch.where(is_number, inputs.std(dim=0, unbiased=False), 1.0)
    std = torch.where(std > 0, std, 1.0)
    return replace(dataset, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
