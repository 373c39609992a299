"""Filters judge the clients of a round: which updates are accepted, and with which weight."""

from .arc import ARC
from .bygars import ByGARS, ByGARSPlusPlus
from .clip import Clip
from .cosdefense import CosDefense
from .diversefl import DiverseFL
from .dnc import DnC
from .flame import FLAME
from .fltrust import FLTrust
from .foolsgold import FoolsGold
from .krum import Krum
from .median_clip import MedianClip
from .multi_krum import MultiKrum
from .near_duplicates import NearDuplicates
from .nnm import NNM
from .norm_limit import NormLimit
from .opposed_clusters import OpposedClusters
from .pca_clusters import PCAClusters
from .quantile_clip import QuantileClip
from .rffl import RFFL
from .sageflow import Sageflow
from .signguard import SignGuard

__all__ = [
    "ARC",
    "FLAME",
    "NNM",
    "RFFL",
    "ByGARS",
    "ByGARSPlusPlus",
    "Clip",
    "CosDefense",
    "DiverseFL",
    "DnC",
    "FLTrust",
    "FoolsGold",
    "Krum",
    "MedianClip",
    "MultiKrum",
    "NearDuplicates",
    "NormLimit",
    "OpposedClusters",
    "PCAClusters",
    "QuantileClip",
    "Sageflow",
    "SignGuard",
]
