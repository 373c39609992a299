"""Grids of many defenses and attacks: what is asked of them, in which order, and the numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ..core import Need
from ..runs.metrics import attack_stop_of
from .groups import Group
from .table import NOTHING, Table

MIN_DEFENSES, MIN_ATTACKS = 10, 6  # from here on curves of all pairs could not be read

ONLY_UPDATES = "Needs nothing but the updates"
ATTACKER_COUNT = "Needs a guess of the share of attackers"
DATA = "Has data at the server or of clients"
NONE = "none"


@dataclass(frozen=True)
class Question:
    """A number of the summaries that is compared."""

    name: str  # of the figure and the table
    key: str
    title: str
    note: str
    high_is_bad: bool = False
    in_rounds: bool = False  # otherwise it is a share


QUESTIONS = (
    Question(
        "grid-accuracy", "tail_accuracy", "Accuracy",
        "Accuracy on held-out data in %, the mean of the evaluations in the last tenth of the rounds.",
    ),
    Question(
        "grid-success", "success_at_stop", "Attack success when the attackers left",
        "The share, in %, of the images aimed at that got the label the attackers wanted, when the attackers left.",
        high_is_bad=True,
    ),
    Question(
        "grid-clean-target-rate", "clean_target_rate", "Target rate on clean images",
        "The share, in %, of the images aimed at that got the label the attackers wanted without being changed, at "
        "the end. It shows how much of a success rate is plain error.",
        high_is_bad=True,
    ),
    Question(
        "grid-lasting", "success_lifespan", "Rounds that success lasts",
        "For how many rounds attack success stayed at 50 % or above after the attackers left. The largest number is "
        "that of all rounds that were left.",
        high_is_bad=True, in_rounds=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """The answers to one question: one number for each defense and attack, the mean over seeds."""

    question: Question
    setting: str  # empty: there is only one
    values: Mapping[tuple[str, str], float]  # by defense and attack
    needs: Mapping[str, str]  # by defense: the heading that it stands under
    top: float = 1.0  # the largest possible value
    n_seeds: int = 1

    @property
    def title(self) -> str:
        return f"{self.question.title}, {self.setting}" if self.setting else self.question.title

    @cached_property
    def attacks(self) -> list[str]:
        """No attack first, then from the least to the most harmful."""
        names = list(dict.fromkeys(attack for _, attack in self.values))
        means = {name: fmean(v for (_, attack), v in self.values.items() if attack == name) for name in names}
        return sorted(names, key=lambda name: (name != NONE, -self._goodness(means[name])))

    def worst(self, defense: str) -> tuple[float, str]:
        """The value under the attack that does most harm, and that attack."""
        own = [(value, attack) for (name, attack), value in self.values.items() if name == defense]
        attacked = [pair for pair in own if pair[1] != NONE] or own
        return min(attacked, key=lambda pair: self._goodness(pair[0]))

    def sides(self) -> Iterator[tuple[str, list[str]]]:
        """Defenses that need the same, the best worst case first; where that is equal, the best mean."""
        names = list(dict.fromkeys(defense for defense, _ in self.values))
        for side in (ONLY_UPDATES, ATTACKER_COUNT, DATA):
            members = [name for name in names if self.needs[name] == side]
            if members:
                yield side, sorted(members, key=self._rank)

    def text(self, value: float, digits: int) -> str:
        return f"{value:.{digits}f}" if self.question.in_rounds else f"{100 * value:.{digits}f}"

    def _rank(self, defense: str) -> tuple[float, float]:
        worst, _ = self.worst(defense)
        mean = fmean(value for (name, _), value in self.values.items() if name == defense)
        return -round(self._goodness(worst), 3), -self._goodness(mean)  # as exact as the tables show it

    def _goodness(self, value: float) -> float:
        return -value if self.question.high_is_bad else value


def list_large_grids(groups: Sequence[Group]) -> list[Grid]:
    """One per question and experiment that has answers for many pairs."""
    grids = []
    for setting in dict.fromkeys(group.setting for group in groups):
        own = [group for group in groups if group.setting == setting]
        shape = len({group.defense for group in own}), len({group.attack for group in own})
        if shape[0] >= MIN_DEFENSES and shape[1] >= MIN_ATTACKS:
            grids += [grid for question in QUESTIONS if (grid := _make_grid(question, setting, own)).values]
    return grids


def make_grid_tables(grids: Sequence[Grid]) -> dict[str, Table]:
    """The numbers of every grid. Names repeat where there are several experiments, so that a number is added."""
    tables = [_make_table(grid) for grid in grids]
    return {f"{table.name}-{number}": table for number, table in enumerate(tables)}


def _make_grid(question: Question, setting: str, groups: Sequence[Group]) -> Grid:
    values = {}
    for group in groups:
        known = _read_values(group, question)
        if known:
            values[group.defense, group.attack] = fmean(known)
    needs = {group.defense: _classify(group.runs[0].header.get("needs") or ()) for group in groups}
    run = groups[0].runs[0]
    top = float(run.n_rounds - (attack_stop_of(run) or 0)) if question.in_rounds else 1.0
    return Grid(question, setting, values, needs, top, max(len(group.runs) for group in groups))


def _read_values(group: Group, question: Question) -> list[float]:
    """Of all seeds. A finished run without an accuracy has a model that is not a number, and counts as 0."""
    values = []
    for run, summary in zip(group.runs, group.summaries, strict=True):
        value = summary.get(question.key)
        if value is None and question.key == "tail_accuracy" and run.summary is not None:
            value = 0.0
        if value is not None:
            values.append(float(value))
    return values


def _classify(needs: Sequence[str]) -> str:
    if {Need.SERVER_DATA, Need.CLIENT_DATA} & set(needs):
        return DATA
    return ATTACKER_COUNT if Need.ATTACKER_COUNT in needs else ONLY_UPDATES


def _make_table(grid: Grid) -> Table:
    rows = []
    for side, defenses in grid.sides():
        for defense in defenses:
            worst, attack = grid.worst(defense)
            known = [grid.values.get((defense, name)) for name in grid.attacks]
            cells = [NOTHING if value is None else grid.text(value, 1) for value in known]
            rows.append((side, defense, attack, grid.text(worst, 1), *cells))
    seeds = f" The mean over {grid.n_seeds} seeds." if grid.n_seeds > 1 else ""
    note = f"{grid.question.note}{seeds} The best worst case stands first, attacks from the least to the most harmful."
    headings = ("Needs", "Defense", "Worst attack", "Worst", *grid.attacks)
    return Table(grid.question.name, grid.title, note, headings, tuple(rows), n_words=3, parts=True)
