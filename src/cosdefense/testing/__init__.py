"""The contract of every part, as checks that you can run on your own parts.

    from cosdefense.testing import check_filter

    def test_mine() -> None:
        check_filter(MyFilter())

Each check raises an AssertionError that names the broken promise.
"""

from .contract import check_aggregator, check_attack, check_defense, check_filter
from .examples import LAYOUT

__all__ = ["LAYOUT", "check_aggregator", "check_attack", "check_defense", "check_filter"]
