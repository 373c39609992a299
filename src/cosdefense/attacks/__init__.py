"""Attacks are what malicious clients do: to their data before training, to their updates after it."""

from .adap_sim import AdapSim
from .adaptive import Adaptive
from .alie import ALIE
from .attack import Attack, TrainingPlan
from .backdoor import Backdoor
from .camouflage import Camouflage
from .constrain_and_scale import ConstrainAndScale
from .dba import DBA
from .edge_case import EdgeCase
from .explicit_boosting import ExplicitBoosting
from .inner_product import InnerProduct
from .krum_poisoning import KrumPoisoning
from .label_flip import LabelFlip
from .learned_policy import LearnedPolicy
from .mimic import Mimic
from .min_max import MinMax
from .min_sum import MinSum
from .mpaf import MPAF
from .neurotoxin import Neurotoxin
from .noise import Noise
from .noise_camouflage import NoiseCamouflage
from .optimized_trigger import OptimizedTrigger
from .orthogonal_inner_product import OrthogonalInnerProduct
from .persistent import Persistent
from .planning import Planning
from .poisoned_buffers import PoisonedBuffers
from .poisoned_fl import PoisonedFL
from .rollback import Rollback
from .rop import ROP
from .sign_flip import SignFlip
from .tailored import Tailored
from .trimmed_mean_poisoning import TrimmedMeanPoisoning
from .zero_sum_masks import ZeroSumMasks
from .zero_updates import ZeroUpdates

__all__ = [
    "ALIE",
    "DBA",
    "MPAF",
    "ROP",
    "AdapSim",
    "Adaptive",
    "Attack",
    "Backdoor",
    "Camouflage",
    "ConstrainAndScale",
    "EdgeCase",
    "ExplicitBoosting",
    "InnerProduct",
    "KrumPoisoning",
    "LabelFlip",
    "LearnedPolicy",
    "Mimic",
    "MinMax",
    "MinSum",
    "Neurotoxin",
    "Noise",
    "NoiseCamouflage",
    "OptimizedTrigger",
    "OrthogonalInnerProduct",
    "Persistent",
    "Planning",
    "PoisonedBuffers",
    "PoisonedFL",
    "Rollback",
    "SignFlip",
    "Tailored",
    "TrainingPlan",
    "TrimmedMeanPoisoning",
    "ZeroSumMasks",
    "ZeroUpdates",
]
