"""Filters judge the clients of a round: who counts, and how much."""

from .clip import Clip
from .cosdefense import CosDefense
from .krum import Krum

__all__ = ["Clip", "CosDefense", "Krum"]
