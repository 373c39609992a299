"""Attacks are what malicious clients do: to their data before training, to their updates after it."""

from .adaptive import Adaptive
from .alie import ALIE
from .attack import Attack, TrainingPlan
from .backdoor import Backdoor
from .camouflage import Camouflage
from .explicit_boosting import ExplicitBoosting
from .inner_product import InnerProduct
from .krum_poisoning import KrumPoisoning
from .label_flip import LabelFlip
from .learned_policy import LearnedPolicy
from .mimic import Mimic
from .min_max import MinMax
from .min_sum import MinSum
from .noise import Noise
from .orthogonal_inner_product import OrthogonalInnerProduct
from .sign_flip import SignFlip
from .trimmed_mean_poisoning import TrimmedMeanPoisoning

__all__ = [
    "ALIE",
    "Adaptive",
    "Attack",
    "Backdoor",
    "Camouflage",
    "ExplicitBoosting",
    "InnerProduct",
    "KrumPoisoning",
    "LabelFlip",
    "LearnedPolicy",
    "Mimic",
    "MinMax",
    "MinSum",
    "Noise",
    "OrthogonalInnerProduct",
    "SignFlip",
    "TrainingPlan",
    "TrimmedMeanPoisoning",
]
