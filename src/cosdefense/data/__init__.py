"""Datasets: found on disk or downloaded, verified, read."""

from .datasets import DATASETS, Dataset, Specification, fetch, load, where
from .formats import DataError, Progress

__all__ = ["DATASETS", "DataError", "Dataset", "Progress", "Specification", "fetch", "load", "where"]
