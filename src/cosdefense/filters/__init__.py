"""Filters judge the clients of a round: which updates are accepted, and with which weight."""

from .alignins import AlignIns
from .arc import ARC
from .bygars import ByGARS, ByGARSPlusPlus
from .clip import Clip
from .cosdefense import CosDefense
from .deepsight import DeepSight
from .diversefl import DiverseFL
from .dnc import DnC
from .fedrola import FedRoLA
from .flame import FLAME
from .fldetector import FLDetector
from .fltrust import FLTrust
from .foolsgold import FoolsGold
from .freqfed import FreqFed
from .krum import Krum
from .lasa import LASA
from .median_clip import MedianClip
from .multi_krum import MultiKrum
from .multi_metrics import MultiMetrics
from .near_duplicates import NearDuplicates
from .nnm import NNM
from .norm_limit import NormLimit
from .opposed_clusters import OpposedClusters
from .pca_clusters import PCAClusters
from .quantile_clip import QuantileClip
from .rffl import RFFL
from .sageflow import Sageflow
from .signguard import SignGuard
from .supported_references import SupportedReferences
from .two_references import TwoReferences

__all__ = [
    "ARC",
    "FLAME",
    "LASA",
    "NNM",
    "RFFL",
    "AlignIns",
    "ByGARS",
    "ByGARSPlusPlus",
    "Clip",
    "CosDefense",
    "DeepSight",
    "DiverseFL",
    "DnC",
    "FLDetector",
    "FLTrust",
    "FedRoLA",
    "FoolsGold",
    "FreqFed",
    "Krum",
    "MedianClip",
    "MultiKrum",
    "MultiMetrics",
    "NearDuplicates",
    "NormLimit",
    "OpposedClusters",
    "PCAClusters",
    "QuantileClip",
    "Sageflow",
    "SignGuard",
    "SupportedReferences",
    "TwoReferences",
]
