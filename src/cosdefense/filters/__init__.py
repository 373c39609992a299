"""Filters judge the clients of a round: who counts, and how much."""

from .bygars import ByGARS, ByGARSPlusPlus
from .clip import Clip
from .cosdefense import CosDefense
from .diversefl import DiverseFL
from .factions import Factions
from .fltrust import FLTrust
from .foolsgold import FoolsGold
from .krum import Krum
from .pace import Pace
from .pca_clusters import PCAClusters
from .rffl import RFFL
from .sageflow import Sageflow
from .voices import Voices

__all__ = [
    "RFFL",
    "ByGARS",
    "ByGARSPlusPlus",
    "Clip",
    "CosDefense",
    "DiverseFL",
    "FLTrust",
    "Factions",
    "FoolsGold",
    "Krum",
    "PCAClusters",
    "Pace",
    "Sageflow",
    "Voices",
]
