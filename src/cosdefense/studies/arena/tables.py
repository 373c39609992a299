"""The arena in words and numbers: what each defense lost under each attack, what it costs, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ...report.results import count, spread
from ...report.table import NOTHING, Table
from ...runs.records import RunRecord
from .defense_results import BACKDOOR, INFORMED, NONE, SURVIVAL, DefenseResult, Setting
from .frozen import read_code
from .seeds import DESIGN, TEST, find_seed_set, show_seeds
from .tuned import MAX_SETTINGS

SIDES = {False: "No oracle", True: "With an oracle"}
INTERVAL, MOST_REJECTED, WORST_CLASS = "95% interval", "Most-rejected honest client", "Worst-class recall, attacked"
RANKED = (
    *("Oracle", "Defense", "Needs", "Options", "Worst attack"),
    *("Lost, worst case", INTERVAL, "Collapses", WORST_CLASS, "Worst-class recall, no attack"),
    *("Lost, adaptive", "Lost, not adaptive", "Lost, mean", "Lost, no attack"),
    *("Backdoor success", "Target rate on clean images"),
    *("Honest rejected, no attack", "Honest rejected, attacked", MOST_REJECTED, "ms per round", "Attacks met"),
)
N_WORDS = 5
MAX_CODES = 3  # versions of the code that are named


def make_arena_tables(settings: Sequence[Setting]) -> dict[str, Table]:
    """By name: two tables a setting, and before them one that compares design and test seeds where there are both."""
    tables = list[Table]()
    for setting in settings:
        test = find_test(setting, settings)
        tables += [make_comparison(setting, test)] if test else []
        tables += [_make_ranking(setting).compact(), _make_accuracies(setting)]
    return {table.name: table for table in tables}


def find_test(setting: Setting, settings: Sequence[Setting]) -> Setting | None:
    """The same setting on test seeds, where this one has design seeds."""
    wanted = f"{setting.name}-{TEST}"
    return next((other for other in settings if setting.seeds == DESIGN and other.name == wanted), None)


def describe_arena(settings: Sequence[Setting]) -> str:
    """The outcome in one paragraph."""
    runs = [run for setting in settings for result in setting.results for run in _list_runs(result)]
    unfinished = sum(run.summary is None for run in runs)
    sentences = [f"{count(len(runs), 'run')}."]
    sentences += [f"{unfinished} of them not finished: the numbers so far."] if unfinished else []
    return " ".join([*sentences, *_describe_code(runs), *map(_describe_outcome, settings)])


def _list_runs(result: DefenseResult) -> Iterator[RunRecord]:
    for group in result.groups.values():
        yield from group.runs


def _describe_code(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Which code ran which seeds. Only of test seeds it matters that it was one, and committed."""
    for name in (DESIGN, TEST):
        own = [run for run in runs if find_seed_set(run.header["seed"]) == name]
        codes = sorted({_show_code(run) for run in own})
        if not own or not any("commit" in run.header for run in own):
            continue
        shown = f"code {', '.join(codes)}" if len(codes) <= MAX_CODES else f"{len(codes)} versions of the code"
        text = f"{name.capitalize()} seeds {show_seeds(run.header['seed'] for run in own)}: {shown}."
        frozen = len(codes) == 1 and not codes[0].endswith("with changes")
        yield text if name == DESIGN or frozen else f"{text} This is not one committed version, as the rules ask for."


def _show_code(run: RunRecord) -> str:
    code, tag = read_code(run.header), run.header.get("tag")
    short = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", code)
    return f"{short} ({tag})" if tag else short


def _describe_outcome(setting: Setting) -> str:
    """Which defense without an oracle has the best worst case, and which loses least to attackers that know it."""
    if setting.clean is None:
        return f"On {setting.title}: plain averaging without an attack, by which all are measured, was not run yet."
    sentences = [f"On {setting.title}, plain averaging without an attack reaches {setting.clean:.1%}."]
    most = max(len(result.attacked) for result in setting.results)  # a worst case among fewer attacks says less
    full = [result for result in setting.results_with(oracle=False) if len(result.attacked) == most]
    if full and full[0].worst:
        attack, _ = full[0].worst
        lost = f"{_points(full[0].lost(attack))} points, under {attack}"
        name = _name(full[0])
        if len(full) > 1:
            sentences.append(f"Of the defenses without an oracle, {name} has the best worst case: it loses {lost}.")
        else:
            sentences.append(f"In its worst case {name} loses {lost}.")
        sentences.append(f"Runs of it that collapse: {_collapses(full[0])}.")
    adaptive = [(result.most_lost_under(*INFORMED), result) for result in setting.results_with(oracle=False)]
    tried = [(lost, result) for lost, result in adaptive if lost is not None]
    if tried:
        least, best = min(tried, key=lambda pair: pair[0])
        loses = "loses least:" if len(tried) > 1 else "loses"
        sentences.append(f"Under attackers that adapt to it, {_name(best)} {loses} {_points(least)} points.")
    return " ".join(sentences)


def _name(result: DefenseResult) -> str:
    """In a sentence, "none has the best worst case" would say something else."""
    return "plain averaging" if result.defense == "none" else result.defense


def _make_ranking(setting: Setting) -> Table:
    uneven = len({len(result.attacked) for result in setting.results}) > 1
    rows = tuple(_make_row(result, uneven) for result in setting.results)
    known = {heading for index, heading in enumerate(RANKED) if any(row[index] != NOTHING for row in rows)}
    title = f"{setting.title}: every defense in its worst case"
    return Table(f"defenses-{setting.name}", title, _explain(setting, known), RANKED, rows, N_WORDS, parts=True)


def _explain(setting: Setting, known: set[str]) -> str:
    """What the columns mean that are there; records of older runs lack some numbers."""
    note = "Lost: points of accuracy (mean of the last tenth of the rounds, over seeds) below plain averaging without "
    note += "an attack on the same seeds. Worst case and mean are over all attacks, also those that know the defense; "
    note += "adaptive: the worst of those that do, not adaptive: the worst of the others. "
    if INTERVAL in known:
        note += "95% interval: Student's t over seeds of the points lost in the worst case, each seed against plain "
        note += "averaging on the same seed; that the attack was chosen for its harm is not accounted for. "
    note += f"Collapses: attacked runs that end below {SURVIVAL:.0%} of the accuracy of plain averaging without an "
    note += "attack. "
    if WORST_CLASS in known:
        note += "Worst-class recall: the lowest recall of a class at the end, mean over seeds; attacked: the lowest "
        note += "over attacks. "
        if setting.clean_worst_class is not None:
            note += f"That of plain averaging without an attack is {setting.clean_worst_class:.1%}. "
    note += f"Options: those that are not the defaults of the catalog. {_explain_options(setting)} "
    note += "Honest rejected: the share of honest updates that filters rejected; attacked: the mean over those of the "
    note += f"attacks that left more than {SURVIVAL:.0%} of the accuracy of plain averaging without an attack, since a "
    note += "destroyed model does not tell honest clients from others. "
    if MOST_REJECTED in known:
        note += f"{MOST_REJECTED}: the one that was rejected most often without an attack, and the share of its "
        note += "rounds in which it was. "
    note += "Milliseconds: of the server's rule, median over "
    note += "runs. Oracle: rules that need what a server does not know without help. Rules that take a guess of the "
    return note + "share of attackers were given the true share of all clients."


def _explain_options(setting: Setting) -> str:
    """How they were chosen, by the headers of the runs."""
    headers = [run.header for result in setting.results for run in _list_runs(result)]
    sources = {str(source): source for header in headers if (source := header.get("tuned"))}
    if not sources:
        return "They are those of the experiment's file: cosdefense arena --tune was not used."
    shown = "; ".join(
        f"{source['field']}, {100 * source['attackers']:.3g}% attackers, seeds {show_seeds(source['seeds'])}"
        for source in sources.values()
    )
    rest = "" if all("tuned" in header for header in headers) else ", but for runs that were made before"
    text = f"Rules with something to tune have the best of at most {MAX_SETTINGS} settings by their worst case on "
    return f"{text}{shown} (cosdefense arena --tune){rest}."


def _make_row(result: DefenseResult, uneven: bool) -> tuple[str, ...]:
    attack = result.worst[0] if result.worst else NOTHING
    clean, backdoors = result.attacks_named(NONE), result.attacks_named(BACKDOOR)
    lost = (result.lost(attack), result.most_lost_under(*INFORMED), result.most_lost_uninformed, result.mean_lost)
    shares = [result.mean_of(key, backdoors) for key in ("attack_success", "clean_target_rate")]
    shares += [result.mean_of("honest_rejected", names) for names in (clean, result.survived)]
    shares += [result.mean_of("most_rejected_honest", clean)]
    cost = result.milliseconds
    return (
        SIDES[result.oracle],
        result.defense,
        ", ".join(sorted(result.needs)) or "nothing",
        result.options or NOTHING,
        attack,
        _points(lost[0]),
        _interval(result),
        _collapses(result),
        *(_share(result.lowest_of("worst_class", attacks)) for attacks in (result.attacked, clean)),
        *map(_points, lost[1:]),
        _points(result.most_lost_under(NONE)),
        *map(_share, shares),
        NOTHING if cost is None else f"{cost:.3g}",
        str(len(result.attacked)) if uneven else NOTHING,
    )


def make_comparison(design: Setting, test: Setting) -> Table:
    """What each defense does on seeds that it was designed on, and on those that were run once, afterwards."""
    tested = {result.defense: result for result in test.results}
    rows = []
    for result in design.results:
        both = (result, tested.get(result.defense))
        cells = [[NOTHING if one is None else show(one) for one in both] for show in _COMPARED.values()]
        rows.append((SIDES[result.oracle], result.defense, *(cell for pair in cells for cell in pair)))
    headings = [f"{name}, {seeds}" for name in _COMPARED for seeds in (DESIGN, TEST)]
    note = f"Design seeds: {show_seeds(_list_seeds(design))}, on which rules are designed and their options chosen. "
    note += f"Test seeds: {show_seeds(_list_seeds(test))}, run once, afterwards. In the order of the design seeds. The "
    note += "columns are explained below; each set of seeds is measured by its own plain averaging without an attack "
    note += f"({_share(design.clean)} and {_share(test.clean)})."
    title = f"{design.title}: design seeds and test seeds"
    table = Table(f"seeds-{design.name}", title, note, ("Oracle", "Defense", *headings), tuple(rows), 4, parts=True)
    return table.compact()


def _list_seeds(setting: Setting) -> list[int]:
    return [run.header["seed"] for result in setting.results for run in _list_runs(result)]


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
    return spread(result.by_seed.get(attack, {}).values())


def _interval(result: DefenseResult) -> str:
    known = result.interval_lost(result.worst[0]) if result.worst else None
    return NOTHING if known is None else "{:.1f} to {:.1f}".format(*(round(end, 1) + 0.0 for end in known))


def _collapses(result: DefenseResult) -> str:
    return NOTHING if result.collapses is None else "{} of {}".format(*result.collapses)


def _points(lost: float | None) -> str:
    return NOTHING if lost is None else f"{lost:.1f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


_COMPARED: dict[str, Callable[[DefenseResult], str]] = {
    "Worst attack": lambda result: result.worst[0] if result.worst else NOTHING,
    "Lost, worst case": lambda result: _points(result.lost(result.worst[0])) if result.worst else NOTHING,
    INTERVAL: _interval,
    "Collapses": _collapses,
    WORST_CLASS: lambda result: _share(result.lowest_of("worst_class", result.attacked)),
    "Lost, no attack": lambda result: _points(result.most_lost_under(NONE)),
    "Honest rejected, no attack": lambda result: _share(result.mean_of("honest_rejected", result.attacks_named(NONE))),
}
