"""Parts that do not keep some promise of the contract, and why."""

from __future__ import annotations

from cosdefense.aggregators import CRFL, CenteredClipping, NoisyMean, NormLimitedMean, TaperedMean
from cosdefense.filters import ByGARS, ByGARSPlusPlus, DiverseFL, FLTrust, FoolsGold, Sageflow

# These may reject clients that all send the same: the server's data decide, or agreement itself is suspicious.
MAY_REJECT_IDENTICAL = (ByGARS, ByGARSPlusPlus, DiverseFL, FLTrust, FoolsGold, Sageflow)
# For these, identical clients do not give their update.
ADDS_NOISE = (CRFL, NoisyMean)
LIMITS_STEPS = (CenteredClipping, NormLimitedMean, TaperedMean)
# Options for tests, where the defaults would take long. Attacks that search have tests of their own with all trials.
SHORTER: dict[str, dict[str, int]] = {"deepsight": {"samples": 20, "draws": 1}}
SHORTER_ATTACKS: dict[str, dict[str, int]] = {
    "adaptive": {"trials": 4},
    "persistent": {"trials": 4},
    "planning": {"trials": 4},
    "tailored": {"trials": 4},
}
