"""Filters judge the clients of a round: which updates are accepted, and with which weight."""

from .bygars import ByGARS, ByGARSPlusPlus
from .clip import Clip
from .cosdefense import CosDefense
from .diversefl import DiverseFL
from .fltrust import FLTrust
from .foolsgold import FoolsGold
from .krum import Krum
from .multi_krum import MultiKrum
from .near_duplicates import NearDuplicates
from .norm_limit import NormLimit
from .opposed_clusters import OpposedClusters
from .pca_clusters import PCAClusters
from .rffl import RFFL
from .sageflow import Sageflow

__all__ = [
    "RFFL",
    "ByGARS",
    "ByGARSPlusPlus",
    "Clip",
    "CosDefense",
    "DiverseFL",
    "FLTrust",
    "FoolsGold",
    "Krum",
    "MultiKrum",
    "NearDuplicates",
    "NormLimit",
    "OpposedClusters",
    "PCAClusters",
    "Sageflow",
]
