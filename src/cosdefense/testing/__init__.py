"""The contract of every part, as checks anyone can run on a part of their own.

    from cosdefense.testing import check_filter

    def test_mine() -> None:
        check_filter(MyFilter())

Each check raises an AssertionError that says which promise was broken.
"""

from .contract import check_aggregator, check_attack, check_defense, check_filter
from .examples import LAYOUT

__all__ = ["LAYOUT", "check_aggregator", "check_attack", "check_defense", "check_filter"]
