"""Aggregators combine the updates of a round into one."""

from .bucketing import Bucketing
from .bulyan import Bulyan
from .centered_clipping import CenteredClipping
from .crfl import CRFL
from .geometric_median import GeometricMedian
from .mean import Mean
from .median import Median
from .noisy_mean import NoisyMean
from .norm_limited_mean import NormLimitedMean
from .rfa import RFA
from .rlr import RLR
from .tapered_mean import TaperedMean
from .trimmed_mean import TrimmedMean
from .typical_norm_mean import TypicalNormMean

__all__ = [
    "CRFL",
    "RFA",
    "RLR",
    "Bucketing",
    "Bulyan",
    "CenteredClipping",
    "GeometricMedian",
    "Mean",
    "Median",
    "NoisyMean",
    "NormLimitedMean",
    "TaperedMean",
    "TrimmedMean",
    "TypicalNormMean",
]
