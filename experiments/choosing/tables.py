"""Writes the tables of docs/choosing.md, from runs of the experiments beside this file.

    for name in hospitals factories phones identities batchnorm adapters; do
      cosdefense run experiments/choosing/$name.toml --device cpu
    done
    python experiments/choosing/tables.py

A run that is not in the folder `runs` is taken from docs/choosing/records.jsonl.gz, the published records. So one rule
can be measured again alone:

    cosdefense run experiments/choosing/hospitals.toml --set 'defenses=[{label="Factions", name="factions"}]'
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import load
from cosdefense.runs.metrics import summary_of
from cosdefense.runs.packed_records import PACK, compact, read_pack, write_pack
from cosdefense.runs.records import RunRecord, read_run

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RECORDS = DOCS / "choosing" / PACK
COLUMNS: dict[
    str, tuple[str, ...]
] = {  # by experiment: what is shown of the runs without an attack beside the accuracy
    "hospitals": ("honest rejected", "most-rejected client", "worst-served client"),
    "factories": ("honest rejected", "most-rejected client"),
    "phones": ("honest rejected",),
    "identities": (),
    "batchnorm": (),
    "adapters": ("honest rejected",),
}


def main(runs: Path) -> None:
    """Publish the records, and replace each table of the page."""
    found = collect_runs((load(HERE / f"{name}.toml") for name in COLUMNS), runs)
    write_pack(RECORDS, found)
    page = DOCS / "choosing.md"
    page.write_text(replace_tables(page.read_text(encoding="utf-8"), found), encoding="utf-8")


def collect_runs(experiments: Iterable[Experiment], runs: Path) -> list[RunRecord]:
    """Every run of the experiments: from its own folder, or else as it was published."""
    published = {identify(run): run for run in read_pack(RECORDS)} if RECORDS.exists() else {}
    found = []
    for cell in (cell for experiment in experiments for cell in experiment.cells()):
        folder = cell.folder(runs)
        if (folder / "records.jsonl").exists():
            found.append(publish(read_run(folder)))
        else:
            found.append(published[cell.name, cell.attacks[0].label, cell.defenses[0].label, cell.seeds[0]])
    return found


def publish(run: RunRecord) -> RunRecord:
    """Without the command, which names folders of the computer that it was given on."""
    short = compact(run)
    return RunRecord(
        {key: value for key, value in short.header.items() if key != "command"}, short.rounds, short.summary
    )


def identify(run: RunRecord) -> tuple[str, str, str, int]:
    header = run.header
    return header["experiment"]["name"], header["attack"], header["defense"], header["seed"]


def replace_tables(page: str, runs: Sequence[RunRecord]) -> str:
    """Each stands below a comment with the name of its experiment."""
    for name, columns in COLUMNS.items():
        own = [run for run in runs if run.header["experiment"]["name"] == f"choosing-{name}"]
        pattern = rf"(<!-- table: {name} -->\n\n)(?:\|.*\n)*\n*"
        before, *after = re.split(pattern, page)
        if len(after) != 2:
            raise ValueError(f"docs/choosing.md needs one place for the table {name}, got {len(after) // 2}")
        page = "".join((before, after[0], write_table(own, columns), "\n", after[1]))
    return page


def write_table(runs: Sequence[RunRecord], columns: Sequence[str]) -> str:
    """Accuracy in %: the mean over the last tenth of the rounds and over seeds."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.header["defense"], run.header["attack"]), []).append(run)
    defenses, attacks = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    head = ["defense", "no attack", *columns, *attacks[1:]]
    rows = []
    for defense in defenses:
        clean, *attacked = (groups[defense, attack] for attack in attacks)
        rows.append([defense, accuracy(clean), *(CLEAN[column](clean) for column in columns), *map(accuracy, attacked)])
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def accuracy(runs: Sequence[RunRecord]) -> str:
    return f"{100 * fmean(summary_of(run)['tail_accuracy'] for run in runs):.1f}"


def honest_rejected(runs: Sequence[RunRecord]) -> str:
    """The share of updates."""
    shares = [share for run in runs if (share := summary_of(run).get("honest_rejected")) is not None]
    return f"{100 * fmean(shares):.1f}" if shares else "–"


def most_rejected(runs: Sequence[RunRecord]) -> str:
    """In how many of its rounds; the highest over seeds, with its name where it has one."""
    entries = [(run, entry) for run in runs if (entry := summary_of(run).get("most_rejected_client"))]
    if not entries:
        return "–"
    run, worst = max(entries, key=lambda pair: float(pair[1]["rejected"]))
    names = run.header.get("clients")
    suffix = f" ({names[worst['client']]})" if names and worst["rejected"] else ""
    return f"{100 * worst['rejected']:.0f}{suffix}"


def worst_served(runs: Sequence[RunRecord]) -> str:
    """The accuracy on its own test samples; the mean over seeds."""
    return f"{100 * fmean(summary_of(run)['worst_client_accuracy'] for run in runs):.1f}"


CLEAN = {
    "honest rejected": honest_rejected,
    "most-rejected client": most_rejected,
    "worst-served client": worst_served,
}

if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
