"""Datasets: found on disk or downloaded, verified, read. Your own are read from files, folders and functions."""

from .dataset import Dataset
from .datasets import fetch, load, where
from .known_datasets import DATASETS, Specification
from .parsers import DataError, Progress
from .splitting import split_dataset

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Progress",
    "Specification",
    "fetch",
    "load",
    "split_dataset",
    "where",
]
