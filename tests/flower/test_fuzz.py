"""Hostile replies of all kinds, with strategies and defenses drawn at random: a sample here, 20,000 if asked for."""

from __future__ import annotations

import os

import pytest
from fuzz import Case, run_case, run_cases

SEED = 1


@pytest.mark.slow
def test_no_hostile_reply_breaks_a_promise() -> None:
    """No exception, a finite model, the honest replies count, a rejected reply changes nothing and its node is named.

    Any failure repeats with the seed that it prints: `run_case(Case(seed))`.
    """
    n = 20_000 if os.environ.get("COSDEFENSE_THOROUGH") else 150
    outcomes, failures = run_cases(n, SEED)
    assert not failures, "\n".join(failures)
    assert outcomes.total() == n
    assert len(outcomes) >= 8  # cases that reach many checks, and some that are harmless
    assert outcomes["accepted"] > 0


def test_a_tiny_update_that_alone_is_accepted_does_not_lock_the_others_out() -> None:
    """FoolsGold rejects seven similar honest nodes and accepts the eighth, whose update is 1e-30 times as long."""
    case = Case(1_007_736)
    assert case.setting == ("FedYogi", "FoolsGold", 7)
    assert run_case(case) == "accepted"
