"""The arena in words and numbers: what each defense lost under each attack, what it costs, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence

from ...report.results import count, spread
from ...report.table import NOTHING, Table
from .defense_results import BACKDOOR, INFORMED, NONE, SURVIVAL, DefenseResult, Setting, list_tail_accuracies

SIDES = {False: "No oracle", True: "With an oracle"}
MOST_REJECTED = "Most-rejected honest client"
RANKED = (
    *("Oracle", "Defense", "Needs", "Worst attack"),
    *(
        "Lost, worst case",
        "Lost, mean",
        "Lost, adaptive",
        "Lost, no attack",
        "Backdoor success",
        "Target rate on clean images",
    ),
    *(
        "Honest rejected, no attack",
        "Honest rejected, attacked",
        "Most-rejected honest client",
        "ms per round",
        "Attacks met",
    ),
)


def make_arena_tables(settings: Sequence[Setting]) -> dict[str, Table]:
    """Two tables a setting, by name."""
    tables = [table for setting in settings for table in (_make_ranking(setting).compact(), _make_accuracies(setting))]
    return {table.name: table for table in tables}


def describe_arena(settings: Sequence[Setting]) -> str:
    """The outcome in one paragraph."""
    groups = [group for setting in settings for result in setting.results for group in result.groups.values()]
    runs = [run for group in groups for run in group.runs]
    unfinished = sum(run.summary is None for run in runs)
    sentences = [f"{count(len(runs), 'run')}."]
    sentences += [f"{unfinished} of them not finished: the numbers so far."] if unfinished else []
    return " ".join([*sentences, *map(_describe_outcome, settings)])


def _describe_outcome(setting: Setting) -> str:
    """Which defense without an oracle has the best worst case, and which loses least to attackers that know it."""
    if setting.clean is None:
        return f"On {setting.title}: plain averaging without an attack, by which all are measured, was not run yet."
    sentences = [f"On {setting.title}, plain averaging without an attack reaches {setting.clean:.1%}."]
    most = max(len(result.attacked) for result in setting.results)  # a worst case among fewer attacks says less
    full = [result for result in setting.results_with(oracle=False) if len(result.attacked) == most]
    if full and full[0].worst:
        attack, end = full[0].worst
        lost = f"{_points(full[0].lost(end))} points, under {attack}"
        sentences.append(
            f"Of the defenses without an oracle, {full[0].defense} has the best worst case: it loses {lost}."
        )
    adaptive = [(result.lowest_under(*INFORMED), result) for result in setting.results_with(oracle=False)]
    tried = [(end, result) for end, result in adaptive if end is not None]
    if tried:
        end, best = max(tried, key=lambda pair: pair[0])
        lost = _points(best.lost(end))
        sentences.append(f"Under attackers that adapt to it, {best.defense} loses least: {lost} points.")
    return " ".join(sentences)


def _make_ranking(setting: Setting) -> Table:
    uneven = len({len(result.attacked) for result in setting.results}) > 1
    rows = tuple(_make_row(result, uneven) for result in setting.results)
    note = "Lost: points of accuracy (mean of the last tenth of the rounds, over seeds) below plain averaging without "
    note += "an attack. Worst case and mean are over all attacks that do not know the defense; adaptive: the lower of "
    note += "those that do. "
    note += "Honest rejected: the share of honest updates that filters rejected; attacked: the mean over those of the "
    note += f"attacks that left more than {SURVIVAL:.0%} of the accuracy of plain averaging without an attack, since a "
    note += "destroyed model does not tell honest clients from others. "
    if any(row[RANKED.index(MOST_REJECTED)] != NOTHING for row in rows):  # old records do not know it
        note += (
            f"{MOST_REJECTED}: the one that was rejected most often without an attack, and the share of its rounds in "
        )
        note += "which it was. "
    note += "Milliseconds: of the server's rule, median over "
    note += "runs. Oracle: rules that need what a server does not know without help. Rules that take a guess of the "
    note += "share of attackers were given the true share of all clients."
    title = f"{setting.title}: every defense in its worst case"
    return Table(f"defenses-{setting.name}", title, note, RANKED, rows, n_words=4, parts=True)


def _make_row(result: DefenseResult, uneven: bool) -> tuple[str, ...]:
    attack, low = result.worst or (NOTHING, None)
    clean, backdoors = result.attacks_named(NONE), result.attacks_named(BACKDOOR)
    ends = (low, result.mean, result.lowest_under(*INFORMED), result.lowest_under(NONE))
    shares = [result.mean_of(key, backdoors) for key in ("attack_success", "clean_target_rate")]
    shares += [result.mean_of("honest_rejected", names) for names in (clean, result.survived)]
    shares += [result.mean_of("most_rejected_honest", clean)]
    cost = result.milliseconds
    return (
        SIDES[result.oracle],
        result.defense,
        ", ".join(sorted(result.needs)) or "nothing",
        attack,
        *(_points(result.lost(end)) for end in ends),
        *map(_share, shares),
        NOTHING if cost is None else f"{cost:.3g}",
        str(len(result.attacked)) if uneven else NOTHING,
    )


def _make_accuracies(setting: Setting) -> Table:
    """Defenses × attacks: what the points were lost from."""
    rows = [
        (SIDES[result.oracle], result.defense, *(_over_seeds(result, attack) for attack in setting.attacks))
        for result in setting.results
    ]
    note = "Accuracy on held-out data, the mean of all evaluations in the last tenth of the rounds. "
    note += "Mean ± standard deviation over seeds."
    title = f"{setting.title}: accuracy under every attack"
    headings = ("Oracle", "Defense", *setting.attacks)
    return Table(f"accuracies-{setting.name}", title, note, headings, tuple(rows), 2, parts=True)


def _over_seeds(result: DefenseResult, attack: str) -> str:
    return spread(list_tail_accuracies(result.groups[attack])) if attack in result.groups else NOTHING


def _points(lost: float | None) -> str:
    return NOTHING if lost is None else f"{lost:.1f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"
