"""How many alarms the default rules raise, and for whom: python benchmarks/alarms.py runs/alarms

The runs: cosdefense run experiments/alarms.toml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cosdefense.monitor import find_alarms
from cosdefense.runs.packed_records import find_runs
from cosdefense.runs.records import RunRecord

HEADER = (
    "attack", "defense", "runs × rounds", "alarms about honest nodes", "malicious named", "median round", "others",
)  # fmt: skip


def main() -> None:
    groups = defaultdict[tuple[str, str], list[RunRecord]](list)
    for _, run in find_runs(Path(sys.argv[1])):
        groups[run.header["attack"], run.header["defense"]].append(run)
    rows = [HEADER, ("---",) * len(HEADER), *(describe(*names, runs) for names, runs in groups.items())]
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def describe(attack: str, defense: str, runs: Sequence[RunRecord]) -> tuple[object, ...]:
    """One line: all seeds together."""
    n_honest = n_others = n_malicious = 0
    named: list[int] = []  # in which round each malicious node was named first
    for run in runs:
        malicious = set(run.header["malicious_clients"]) if attack != "none" else set[int]()
        alarms = find_alarms(run.rounds)
        n_others += sum(alarm.node is None for alarm in alarms)
        n_honest += sum(alarm.node is not None and alarm.node not in malicious for alarm in alarms)
        n_malicious += len(malicious)
        named += {alarm.node: alarm.round + 1 for alarm in reversed(alarms) if alarm.node in malicious}.values()
    size = f"{len(runs)} × {len(runs[0].rounds)}"
    found = f"{len(named)} of {n_malicious}" if n_malicious else "–"
    return attack, defense, size, n_honest, found, f"{median(named):g}" if named else "–", n_others


if __name__ == "__main__":
    main()
