"""A rule with memory per client, in a federation where every client takes a new identity in every round."""

from __future__ import annotations

from dataclasses import dataclass

import cosdefense
from cosdefense.core import Cohort, Filter, Judgment, State


@dataclass(frozen=True)
class NewIdentities(Filter):
    """The first filter of the rule, which has never seen any of the clients before.

    Args:
        rule: The name of a defense.
    """

    rule: str = "foolsgold"

    def __post_init__(self) -> None:
        self._filter()

    def _filter(self) -> Filter:
        return cosdefense.get(self.rule).filters[0]

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        rule = self._filter()
        judgment, _ = rule(cohort, rule.init())  # what it would remember belongs to identities that do not return
        return judgment, state
