"""The reproduced paper in words and numbers: what it printed beside our results, and what it does not print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ...report.experiment_settings import read_setting
from ...report.groups import Group
from ...report.results import area, count, spread
from ...report.table import NOTHING, Table
from ...runs.records import RunRecord
from .chart_data import layer_rows, mean_scores
from .claims import DEVIATION, list_seeds, make_claims, make_recovery
from .views import COUNTED, ROUNDS, Paper, View, before_attack, views

TITLE = "Secure Federated Learning against Model Poisoning Attacks via Client Filtering"


def make_paper_tables(paper: Paper) -> dict[str, Table]:
    """Every table that has rows, by name."""
    tables = [
        _make_table3(paper),
        make_recovery(paper),
        _make_detection(paper),
        _make_clean(paper),
        _make_varied("attackers", "Figure 4 in numbers: how many attack", paper.attackers, "Attackers", ".0%"),
        _make_varied("skew", "Figure 6 in numbers: how different the clients are", paper.skew, "q", ".3g"),
        _make_layers(paper),
        _make_traces(paper),
        *make_claims(paper),
    ]
    return {table.name: table.compact() for table in tables if table.rows}


def describe_paper(paper: Paper) -> str:
    """The results in one paragraph."""
    headers = [*(run.header for run in paper.runs), *(run.header for run in paper.drift)]
    known = sorted({seed for header in headers if isinstance(seed := header.get("seed"), int)})
    devices = ", ".join(dict.fromkeys(str(header["device"]) for header in headers if header.get("device")))
    sentences = [f"The experiments of “{TITLE}” (Yaldiz, Zhang, Avestimehr 2023), run again:"]
    sentences += [f"{count(len(headers), 'run')}, {_list('seed', known)}{f', on {devices}' if devices else ''}."]
    unfinished = sum(run.summary is None for run in paper.runs)
    sentences += [f"{unfinished} of them not finished: the numbers so far."] if unfinished else []
    sentences += [sentence for view in views(paper.attacked) if (sentence := _describe_outcome(view))]
    sizes = {_planned_rounds(run) for group in paper.attacked for run in group.runs} - {ROUNDS}
    if sizes:
        planned = " or ".join(f"{size:,}" for size in sorted(sizes))
        sentences += [
            f"These runs have {planned} rounds where the paper has {ROUNDS:,}: an impression, not its numbers."
        ]
    return " ".join(sentences)


def _describe_outcome(view: View) -> str:
    """How CosDefense ended on one dataset, and what the paper says."""
    for group in view.groups:
        end = spread(summary.get(view.final) for summary in group.summaries)
        if group.defense == "CosDefense" and end != NOTHING:
            how = f" tested with {view.test}" if view.test else ""
            return f"On {view.dataset}{how}, CosDefense ended at {end} accuracy (the paper: {view.printed(group)})."
    return ""


def _make_table3(paper: Paper) -> Table:
    """Table 3, ours beside the paper's."""
    all_views = views(paper.attacked)
    rows = [
        (
            view.title,
            group.defense,
            view.printed(group) or NOTHING,
            _over_seeds(group, view.final),
            _over_seeds(group, view.tail),
            spread(before_attack(run, view.key) for run in group.runs),
            NOTHING if view.key != "accuracy" else _over_seeds(group, "worst_class"),
            list_seeds(group),
        )
        for view in all_views
        for group in view.groups
    ]
    accuracies = ("Final accuracy", _tail(paper.attacked), "Before the attack", "Worst class")
    headings = ("Dataset", "Defense", "Paper", *accuracies, "Seeds")
    note = "Accuracy on held-out data under attack. Final: in the last round, which is what the paper prints. "
    note += f"{_tail(paper.attacked)}: the mean of all evaluations in them. "
    note += "Before the attack: the last evaluation before it starts. "
    if any(row[6] != NOTHING for row in rows):
        note += "Worst class: the lowest share of a class that got its label at the end. "
    note += "".join(text for name, text in VARIANTS.items() if any(row[1] == name for row in rows))
    if any(view.test for view in all_views):
        note += "Running statistics: BatchNorm tested with what it learned; batch statistics: with those of each test "
        note += "batch, as the authors did. "
    return Table("table3", "Table 3: ours beside the paper's", note + DEVIATION, headings, tuple(rows), 2, parts=True)


VARIANTS = {  # what a reader of the paper would not guess
    "Krum": "Krum: the authors' version, given the number of malicious clients of every round. ",
    "Krum (its paper)": "Krum (its paper): as it was published. ",
    COUNTED: f"{COUNTED}: the norm that is clipped counts BatchNorm's counters, as in the authors' code. ",
}


def _make_detection(paper: Paper) -> Table:
    without_attack = {(group.setting, group.defense): group for group in paper.clean}
    rows = []
    for group in paper.attacked:
        clean = without_attack.get((group.setting, group.defense))
        cells = [_over_seeds(group, "malicious_rejected"), _over_seeds(group, "honest_rejected"), area(group)]
        cells += [_over_seeds(group, "clean_honest_rejected")]
        cells += [_over_seeds(clean, "honest_rejected") if clean else NOTHING]
        if any(cell != NOTHING for cell in cells):
            rows.append((group.setting, group.defense, *cells, list_seeds(group)))
    rejected = ("Malicious rejected", "Honest rejected", "AUC", "Honest rejected in rounds without attackers")
    headings = ("Dataset", "Defense", *rejected, "Honest rejected without the attack", "Seeds")
    note = "What the paper does not print: of the updates a filter judged, how many it rejected. AUC: how often a "
    note += (
        "malicious client scores above an honest one of the same round. Rounds without attackers: those under attack "
    )
    note += f"into which none was drawn. Clipping shortens updates and rejects none. {DEVIATION}"
    return Table("detection", "Who was rejected", note, headings, tuple(rows), 2, parts=True)


def _make_clean(paper: Paper) -> Table:
    rows = []
    for view in views(paper.clean):
        plain = next((group for group in view.groups if group.defense == "none"), None)
        for group in view.groups:
            cells = [_over_seeds(group, view.final), _over_seeds(group, view.tail)]
            cells += [_cost(plain, group, key) for key in (view.final, view.tail)]
            rows.append((view.title, group.defense, *cells, list_seeds(group)))
    tail = _tail(paper.clean)
    headings = ("Dataset", "Defense", "Final accuracy", tail, "Cost, final", f"Cost, {tail.lower()}", "Seeds")
    note = "Accuracy when nobody attacks. Cost: how many points a defense loses against the plain mean, by the same "
    note += f"seeds; that is the price of rejecting honest clients. {DEVIATION}"
    title = "Without any attack, and what a defense then costs"
    return Table("clean", title, note, headings, tuple(rows), 2, parts=True)


def _cost(plain: Group | None, group: Group, key: str) -> str:
    """Points of accuracy lost against the plain mean, seed by seed."""
    if plain is None or plain is group:
        return NOTHING
    ends, own = _by_seed(plain, key), _by_seed(group, key)
    return spread([100 * (ends[seed] - own[seed]) for seed in own if seed in ends], ".1f")


def _by_seed(group: Group, key: str) -> dict[object, float]:
    pairs = zip(group.runs, group.summaries, strict=True)
    return {run.header.get("seed"): end for run, summary in pairs if (end := summary.get(key)) is not None}


def _make_varied(name: str, title: str, values: Sequence[tuple[float, Group]], what: str, form: str) -> Table:
    keys = ("final_accuracy", "tail_accuracy", "malicious_rejected", "honest_rejected")
    rows = [
        (f"{value:{form}}", _label(group), *(_over_seeds(group, key) for key in keys), list_seeds(group))
        for value, group in values
    ]
    tail = _tail([group for _, group in values])
    headings = (what, "Defense", "Final accuracy", tail, "Malicious rejected", "Honest rejected", "Seeds")
    note = f"On MNIST under the inner product attack. {DEVIATION}"
    return Table(name, title, note, headings, tuple(rows), 2, folded=True)


def _make_layers(paper: Paper) -> Table:
    rows = layer_rows(paper.drift)
    iterations = sorted({row["iteration"] for row in rows})
    first, last = (iterations[0], iterations[-1]) if iterations else (0, 0)
    means = {(row["of"], row["tensor"], row["iteration"]): f"{row['mean']:.3f}" for row in rows}
    columns = [(what, iteration) for what in ("weights", "changes") for iteration in (first, last)]
    cells = [
        (layer, tensor, *(means.get((what, tensor, iteration), NOTHING) for what, iteration in columns))
        for tensor, layer in {row["tensor"]: row["layer"] for row in rows}.items()
    ]
    headings = ("Layer", "Tensor", *(f"{what.capitalize()} after {iteration:,}" for what, iteration in columns))
    note = (
        "Cosine similarity of a client's weights, and of how they changed since the start, with those of the others, "
    )
    note += "after so many iterations: the mean over clients and seeds."
    return Table(
        "layers", "Figure 1 in numbers: clients without averaging", note, headings, tuple(cells), 2, folded=True
    )


def _make_traces(paper: Paper) -> Table:
    starts = {start for group in paper.scores for start in group.attack_starts}
    start = min(starts) if starts else None
    rows = []
    for group in paper.scores:
        before, after = zip(*(_halves(mean_scores(run), start) for run in group.runs), strict=True)
        rows.append((case(group), spread(before, ".4f"), spread(after, ".4f"), list_seeds(group)))
    when = "the attack starts" if start is None else f"round {start:,}"
    headings = ("Case", f"Before {when}", f"From {when} on", "Seeds")
    note = f"The mean |cos| of all updates that CosDefense received, not smoothed. {DEVIATION}"
    return Table("traces", "Figure 2 in numbers: mean scores", note, headings, tuple(rows), folded=True)


def _halves(trace: Sequence[tuple[int, float]], start: int | None) -> tuple[float | None, float | None]:
    """The mean before a round, and from it on."""
    before = [score for number, score in trace if start is None or number < start]
    after = [score for number, score in trace if start is not None and number >= start]
    return fmean(before) if before else None, fmean(after) if after else None


def case(group: Group) -> str:
    """How a line of figure 2 is called."""
    return group.circumstances[0].upper() + group.circumstances[1:] if group.circumstances else "all runs"


def _over_seeds(group: Group, key: str) -> str:
    return spread(summary.get(key) for summary in group.summaries)


def _label(group: Group) -> str:
    return f"{group.defense} ({group.setting})" if group.setting else group.defense


def _planned_rounds(run: RunRecord) -> int:
    """How many rounds the run was to have."""
    planned = read_setting(run.header, "experiment", "training", "rounds")
    return planned if isinstance(planned, int) else run.n_rounds


def _tail(groups: Sequence[Group]) -> str:
    """What the last tenth is called where all runs are of one length."""
    lengths = {_planned_rounds(run) for group in groups for run in group.runs}
    return f"Last {math.ceil(lengths.pop() / 10):,} rounds" if len(lengths) == 1 else "Last tenth"


def _list(thing: str, numbers: Sequence[int]) -> str:
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{thing}s {numbers[0]}–{numbers[-1]}"
    return f"{thing}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers)) or 'unknown'}"
