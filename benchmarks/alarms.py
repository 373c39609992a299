"""How many alarms the default rules raise, and for whom: python benchmarks/alarms.py runs/alarms

The runs: cosdefense run experiments/alarms.toml
"""

from __future__ import annotations

import sys
from pathlib import Path

from cosdefense.monitor import find_alarms
from cosdefense.runs.packed_records import read_runs
from cosdefense.runs.records import RunRecord


def main() -> None:
    print("| attack | defense | rounds | alarms about honest nodes | malicious named | in rounds | other alarms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for run in read_runs(Path(sys.argv[1])):
        print(f"| {' | '.join(map(str, describe(run)))} |")


def describe(run: RunRecord) -> list[object]:
    attacked = run.header["attack"] != "none"
    malicious = set(run.header["malicious_clients"]) if attacked else set[int]()
    alarms = find_alarms(run.rounds)
    honest = [alarm for alarm in alarms if alarm.node is not None and alarm.node not in malicious]
    named = {alarm.node: alarm.round + 1 for alarm in reversed(alarms) if alarm.node in malicious}
    n_others = sum(alarm.node is None for alarm in alarms)
    found = (
        [f"{len(named)} of {len(malicious)}", ", ".join(map(str, sorted(named.values())))] if attacked else ["–", "–"]
    )
    return [run.header["attack"], run.header["defense"], len(run.rounds), len(honest), *found, n_others]


if __name__ == "__main__":
    main()
