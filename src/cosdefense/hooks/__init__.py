"""Hooks run on honest clients during training: the client's side of a defense."""

from .adversarial_training import AdversarialTraining
from .fl_wbc import FLWBC
from .worker_momentum import WorkerMomentum

__all__ = ["FLWBC", "AdversarialTraining", "WorkerMomentum"]
