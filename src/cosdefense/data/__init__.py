"""Datasets: found on disk or downloaded, verified, read."""

from .datasets import Dataset, fetch, load, where
from .formats import DataError, Progress
from .specifications import DATASETS, Specification

__all__ = ["DATASETS", "DataError", "Dataset", "Progress", "Specification", "fetch", "load", "where"]
