"""Datasets: found on disk or downloaded, verified, read."""

from .datasets import Dataset, fetch, load, where
from .known_datasets import DATASETS, Specification
from .parsers import DataError, Progress

__all__ = ["DATASETS", "DataError", "Dataset", "Progress", "Specification", "fetch", "load", "where"]
