"""Named defenses, ready to use: the compositions that papers give one name."""

from .client_side import fat, fl_wbc
from .clipping import centered_clipping, central_dp, clipping_median, crfl, norm_clipping, weak_dp
from .clustering import (
    deepsight,
    factions,
    flame,
    freqfed,
    opposed_clusters,
    pca_clustering,
    signguard,
    two_references,
)
from .distances import arc, dnc, krum, multi_krum, multi_metrics, nnm, rfa
from .memory import fedrola, fldetector, foolsgold, rffl
from .statistics import alignins, bucketing, cosdefense, fedavg, lasa, median, rlr, trimmed_mean
from .trust import bygars, bygars_plus_plus, diversefl, fltrust, sageflow

__all__ = [
    "alignins",
    "arc",
    "bucketing",
    "bygars",
    "bygars_plus_plus",
    "centered_clipping",
    "central_dp",
    "clipping_median",
    "cosdefense",
    "crfl",
    "deepsight",
    "diversefl",
    "dnc",
    "factions",
    "fat",
    "fedavg",
    "fedrola",
    "fl_wbc",
    "flame",
    "fldetector",
    "fltrust",
    "foolsgold",
    "freqfed",
    "krum",
    "lasa",
    "median",
    "multi_krum",
    "multi_metrics",
    "nnm",
    "norm_clipping",
    "opposed_clusters",
    "pca_clustering",
    "rfa",
    "rffl",
    "rlr",
    "sageflow",
    "signguard",
    "trimmed_mean",
    "two_references",
    "weak_dp",
]
