"""Aggregators combine the updates of a round into one."""

from .mean import Mean
from .median import Median
from .noisy_mean import NoisyMean
from .trimmed_mean import TrimmedMean

__all__ = ["Mean", "Median", "NoisyMean", "TrimmedMean"]
