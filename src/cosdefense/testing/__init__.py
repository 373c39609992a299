"""The contract of every part, as checks that you can run on your own parts.

    from cosdefense.testing import check_filter

    def test_mine() -> None:
        check_filter(MyFilter())

Each check raises an AssertionError that names the broken promise. `check_restoring` is for defenses that claim it: an
honest majority that agrees is followed, whatever the others send and whatever the defense remembers.
"""

from .agreement import Agreement
from .contract import check_aggregator, check_attack, check_defense, check_filter
from .examples import LAYOUT
from .restoring import WorstRound, check_restoring, find_worst_round

__all__ = [
    "LAYOUT",
    "Agreement",
    "WorstRound",
    "check_aggregator",
    "check_attack",
    "check_defense",
    "check_filter",
    "check_restoring",
    "find_worst_round",
]
