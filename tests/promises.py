"""Which parts do not make which promise of the contract, and why."""

from __future__ import annotations

from cosdefense.aggregators import CenteredClipping, NoisyMean, NormLimitedMean
from cosdefense.filters import ByGARS, ByGARSPlusPlus, DiverseFL, FLTrust, FoolsGold, Sageflow

# For these, equal updates are no sign of honesty: the server's data decide, or agreement itself is suspicious.
NOT_BY_AGREEMENT = (ByGARS, ByGARSPlusPlus, DiverseFL, FLTrust, FoolsGold, Sageflow)
# For these, identical clients do not give that very update.
ADDS_NOISE = (NoisyMean,)
LIMITS_STEPS = (CenteredClipping, NormLimitedMean)
