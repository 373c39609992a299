"""Attacks are what malicious clients do: to their data before training, to their updates after it."""

from .attack import Attack, Effort
from .inner_product import InnerProduct
from .label_flip import LabelFlip
from .learned_policy import LearnedPolicy
from .noise import Noise
from .sign_flip import SignFlip

__all__ = ["Attack", "Effort", "InnerProduct", "LabelFlip", "LearnedPolicy", "Noise", "SignFlip"]
