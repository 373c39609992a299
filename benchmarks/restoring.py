"""Which rules follow an honest majority that agrees: `check_restoring` on every defense of the catalog.

    python benchmarks/restoring.py [--rounds 2000] [--rules median,krum] [--jobs 2]

Printed: the table of docs/restoring.md. For 3 and for 4 malicious clients of 10: the least progress that was found, and
the simplest counterexample. Rules that need the share of malicious clients are told it. The same options print the
same table.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from inspect import signature
from itertools import product

import torch

from cosdefense.catalog.registry import AGGREGATORS, PRESETS, build_defense
from cosdefense.core import Defense
from cosdefense.testing import Agreement, WorstRound, find_worst_round
from cosdefense.testing.scenarios import Rounds

N_MALICIOUS = (3, 4)  # of ten
NO_PRESET = ("geometric-median",)  # aggregators that no preset uses. Bulyan tolerates less than a quarter.


def build_rule(name: str, n_malicious: int) -> Defense:
    factory = AGGREGATORS[name] if name in NO_PRESET else PRESETS[name]
    options = {"contamination": n_malicious / 10} if "contamination" in signature(factory).parameters else {}
    return build_defense({"aggregator": {"name": name, **options}} if name in NO_PRESET else {"name": name, **options})


def search(name: str, n_malicious: int, n_rounds: int) -> WorstRound:
    torch.set_num_threads(1)
    agreement = Agreement(n_malicious=n_malicious)
    return find_worst_round(build_rule(name, n_malicious), agreement, n_rounds=n_rounds)


def describe_result(worst: WorstRound) -> str:
    if worst.progress >= Agreement().min_progress:
        return f"holds ({worst.progress:.2f})"
    n_rounds = worst.scenario.n_earlier_rounds
    when = f"after {n_rounds} round{'s' * (n_rounds > 1)}" if n_rounds else "in the first round"
    return f"fails {when} ({'skipped' if worst.skipped else f'{worst.progress:.2f}'})"


def describe_counterexample(worst: WorstRound) -> str:
    if worst.progress >= Agreement().min_progress:
        return "–"
    last, earlier = worst.scenario.last, "; ".join(map(describe_rounds, worst.scenario.history))
    honest = describe_difference(last)
    sent = f"{last.n_malicious} send {last.forgery}" + (f"; honest updates: {honest}" if honest else "")
    reason = f"; skipped: {worst.skipped}" if worst.skipped else ""
    return sent + (f"; before that {earlier}" if earlier else "") + reason


def describe_rounds(rounds: Rounds) -> str:
    who = f"{rounds.n_malicious} send {rounds.forgery}" if rounds.n_malicious else "all honest"
    honest = ", ".join(filter(None, [f"cosines {rounds.honest.cosine:.3g}", describe_difference(rounds)]))
    return f"{rounds.n_rounds} × {who}" + (f" ({honest})" if rounds.n_malicious < 10 else "")


def describe_difference(rounds: Rounds) -> str:
    """What is special about the honest updates. They are random, of norm 1 and equally long otherwise."""
    honest = rounds.honest
    parts = [f"{honest.direction.replace('_', ' ')} direction"] * (honest.direction != "random")
    parts += [f"deviations: {honest.deviation}"] * (honest.deviation != "noise")
    parts += [f"{honest.norms.replace('_', ' ')}"] * (honest.norms != "equal")
    return ", ".join([*parts, *[f"norm {honest.scale:.3g}"] * (honest.scale != 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="the number of rounds that each search may run")
    parser.add_argument("--rules", default=",".join((*PRESETS, *NO_PRESET)))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    names = given.rules.split(",")
    cases = list(product(names, N_MALICIOUS))
    with ProcessPoolExecutor(given.jobs) as pool:
        found = {case: pool.submit(search, *case, given.rounds) for case in cases}
        print("| rule | 3 of 10 malicious | 4 of 10 malicious | the simplest counterexample with 3, else with 4 |")
        print("| --- | --- | --- | --- |")
        for name in names:
            few, many = (found[name, n_malicious].result() for n_malicious in N_MALICIOUS)
            example = describe_counterexample(few if few.progress < Agreement().min_progress else many)
            print(f"| `{name}` | {describe_result(few)} | {describe_result(many)} | {example} |", flush=True)


if __name__ == "__main__":
    main()
