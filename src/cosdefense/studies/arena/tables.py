"""The arena in words and numbers: who lost how much to whom, what it cost, and what it had to be told."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.results import count, spread
from ...report.table import NOTHING, Table
from .standings import ADAPTIVE, BACKDOOR, NONE, SURVIVAL, Field, Fighter, tails

SIDES = {False: "No oracle", True: "With an oracle"}
RANKED = (
    *("Oracle", "Defense", "Needs", "Worst attack"),
    *("Lost, worst case", "Lost, mean", "Lost, adaptive", "Lost, no attack", "Backdoor success"),
    *("Honest rejected, no attack", "Honest rejected, attacked", "ms per round", "Attacks met"),
)


def arena_tables(fields: Sequence[Field]) -> dict[str, Table]:
    """Two tables a field, by name."""
    tables = [table for field in fields for table in (_ranking(field).compact(), accuracies_of(field))]
    return {table.name: table for table in tables}


def in_words(fields: Sequence[Field]) -> str:
    """A paragraph for somebody who reads nothing else."""
    runs = [run for field in fields for fighter in field.fighters for g in fighter.groups.values() for run in g.runs]
    unfinished = sum(run.summary is None for run in runs)
    told = [f"{count(len(runs), 'run')}."]
    told += [f"{unfinished} of them not finished: the numbers so far."] if unfinished else []
    return " ".join([*told, *map(_outcome, fields)])


def _outcome(field: Field) -> str:
    """Which defense without an oracle has the best worst case, and which loses least to attackers that know it."""
    if field.clean is None:
        return f"On {field.title}: plain averaging without an attack, by which all are measured, was not run yet."
    told = [f"On {field.title}, plain averaging without an attack reaches {field.clean:.1%}."]
    full = [fighter for fighter in field.side(oracle=False) if len(fighter.attacked) == _most(field)]
    first = full[0] if full else None
    if first and first.worst:
        lost = f"{_points(first.lost(first.worst[1]))} points, under {first.worst[0]}"
        told.append(f"Of the defenses without an oracle, {first.defense} has the best worst case: it loses {lost}.")
    tried = [(end, fighter) for fighter in field.side(oracle=False) if (end := fighter.under(ADAPTIVE)) is not None]
    if tried:
        end, best = max(tried, key=lambda pair: pair[0])
        told.append(f"Under attackers that adapt to it, {best.defense} loses least: {_points(best.lost(end))} points.")
    return " ".join(told)


def _most(field: Field) -> int:
    """Attacks that the most tried defense met: a worst case among fewer says less."""
    return max(len(fighter.attacked) for fighter in field.fighters)


def _ranking(field: Field) -> Table:
    uneven = len({len(fighter.attacked) for fighter in field.fighters}) > 1
    rows = tuple(_row(fighter, uneven) for fighter in field.fighters)
    note = "Lost: points of accuracy (mean of the last tenth of the rounds, over seeds) below plain averaging without "
    note += "an attack. Worst case and mean are over all attacks but the adaptive one, which knows the defense. "
    note += "Honest rejected: the share of honest updates that filters rejected; attacked: the mean over those of the "
    note += f"attacks that left more than {SURVIVAL:.0%} of the accuracy of plain averaging without an attack, since a "
    note += "destroyed model tells honest clients from nobody. Milliseconds: of the server's rule, median over runs. "
    note += "Oracle: rules that need what a server cannot know by itself; a guess of attackers was the truth."
    title = f"{field.title}: every defense in its worst case"
    return Table(f"defenses-{field.name}", title, note, RANKED, rows, n_words=4, parts=True)


def _row(fighter: Fighter, uneven: bool) -> tuple[str, ...]:
    attack, low = fighter.worst or (NOTHING, None)
    clean, backdoors = fighter.attacks_of(NONE), fighter.attacks_of(BACKDOOR)
    ends = (low, fighter.mean, fighter.under(ADAPTIVE), fighter.under(NONE))
    shares = [fighter.mean_of("attack_success", backdoors)]
    shares += [fighter.mean_of("honest_rejected", names) for names in (clean, fighter.survived)]
    cost = fighter.milliseconds
    return (
        SIDES[fighter.oracle],
        fighter.defense,
        ", ".join(sorted(fighter.needs)) or "nothing",
        attack,
        *(_points(fighter.lost(end)) for end in ends),
        *map(_share, shares),
        NOTHING if cost is None else f"{cost:.3g}",
        str(len(fighter.attacked)) if uneven else NOTHING,
    )


def accuracies_of(field: Field) -> Table:
    """Defenses × attacks: what the points were lost from."""
    rows = [
        (SIDES[fighter.oracle], fighter.defense, *(_over_seeds(fighter, attack) for attack in field.attacks))
        for fighter in field.fighters
    ]
    note = "Accuracy on held-out data, the mean of all evaluations in the last tenth of the rounds. "
    note += "Mean ± standard deviation over seeds."
    title = f"{field.title}: accuracy under every attack"
    return Table(
        f"accuracies-{field.name}", title, note, ("Oracle", "Defense", *field.attacks), tuple(rows), 2, parts=True
    )


def _over_seeds(fighter: Fighter, attack: str) -> str:
    return spread(tails(fighter.groups[attack])) if attack in fighter.groups else NOTHING


def _points(lost: float | None) -> str:
    return NOTHING if lost is None else f"{lost:.1f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"
