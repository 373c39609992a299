"""Starts a federation on this computer, attacks it with and without a defense, and prints which nodes were rejected.

python federation.py [--secure] [--nodes 10] [--malicious 3] [--attack inner-product] [--defense multi-krum] …
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certificates import make_certificates, make_node_key
from loopback import FederationFailed, Loopback

from cosdefense.runs.records import RunRecord, read_run

APP = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Plan:
    """How many nodes there are, how many of them attack, and how."""

    nodes: int
    malicious: int
    attack: str

    @property
    def quorum(self) -> int:
        """One node may be missing, if Multi-Krum can still handle this many malicious nodes among the others."""
        return max(self.nodes - 1, 2 * self.malicious + 3)

    @property
    def contamination(self) -> float:
        """The largest share of malicious replies in a round that counts: if only honest replies are missing."""
        return self.malicious / self.quorum

    def is_malicious(self, number: int) -> bool:
        return number < self.malicious

    def get_node_config(self, number: int) -> dict[str, str | int]:
        config: dict[str, str | int] = {"partition-id": number, "num-partitions": self.nodes}
        return {**config, "attack": self.attack} if self.is_malicious(number) else config


@dataclass(frozen=True)
class FinishedRun:
    record: RunRecord
    attacked: bool


def main() -> None:
    options = parse_options()
    plan = Plan(options.nodes, options.malicious, options.attack)
    if plan.quorum > plan.nodes:
        sys.exit(f"{plan.malicious} malicious nodes need at least {2 * plan.malicious + 3} nodes, got {plan.nodes}")
    out: Path = options.out.resolve()
    if (out / "attacked").exists():
        sys.exit(f"{out} already holds a federation: choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all started processes end then, too
    certificates = make_certificates(out / "secrets") if options.secure else None
    with Loopback(out / "logs", certificates) as federation:
        start_nodes(federation, plan, out / "secrets")
        say(f"SuperLink on {federation.address}, {plan.nodes} SuperNodes connected to {federation.node_address}")
        runs = {
            f"no attack, {options.defense}": (out / "clean" / options.defense, options.defense, False),
            f"{plan.attack}, no defense": (out / "attacked" / "none", "none", True),
            f"{plan.attack}, {options.defense}": (out / "attacked" / options.defense, options.defense, True),
        }
        finished = {}
        for name, (folder, defense, attacked) in runs.items():
            say(f"{name}: {options.rounds} rounds")
            run = federation.submit(
                APP, num_server_rounds=options.rounds, defense=defense, contamination=plan.contamination,
                attacks=attacked, checkpoint_dir=str(folder), min_nodes=plan.nodes, quorum=plan.quorum,
            )  # fmt: skip
            federation.wait_for_run(run, 120.0 * options.rounds)
            finished[name] = FinishedRun(read_run(folder), attacked)
        numbers = {federation.get_node_id(node_name(i)) or 0: i for i in range(plan.nodes)}
    show(finished, numbers, plan)
    say("the report of the two attacked runs:")
    subprocess.run([sys.executable, "-m", "cosdefense", "report", out / "attacked"], check=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Flower federation on this computer, attacked and defended.")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--malicious", type=int, default=3, help="how many of the nodes attack")
    parser.add_argument("--attack", default="inner-product", help="an attack of `cosdefense list`")
    parser.add_argument("--defense", default="multi-krum", choices=["multi-krum", "cosdefense"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--secure", action="store_true", help="TLS, node authentication and a proxy; needs nginx")
    parser.add_argument("--out", type=Path, default=Path("runs/flower"), help="records, logs, keys; must be new")
    return parser.parse_args()


def start_nodes(federation: Loopback, plan: Plan, secrets: Path) -> None:
    federation.start_superlink(database=False)
    if federation.certificates:
        federation.start_proxy()
    names = [node_name(number) for number in range(plan.nodes)]
    for number, name in enumerate(names):
        key = None
        if federation.certificates:
            key = make_node_key(secrets / name)
            federation.register(key)
        federation.start_supernode(name, plan.get_node_config(number), key=key)
    federation.wait_for(lambda: all(map(federation.get_node_id, names)), "starting the SuperNodes", 180.0)


def node_name(number: int) -> str:
    return f"node-{number}"


def show(finished: dict[str, FinishedRun], numbers: dict[int, int], plan: Plan) -> None:
    """Print one line per run, then how often each node was rejected in the last run."""
    say(f"{'':32} {'accuracy':>9} {'malicious rejected':>19} {'honest rejected':>16}")
    for name, run in finished.items():
        verdicts = [verdict for line in run.record.rounds for verdict in zip(line.clients, line.weights, strict=True)]
        malicious = {client for client, number in numbers.items() if run.attacked and plan.is_malicious(number)}
        caught = format_share([not weight for client, weight in verdicts if client in malicious])
        wronged = format_share([not weight for client, weight in verdicts if client not in malicious])
        say(f"{name:32} {run.record.rounds[-1].accuracy or 0:9.1%} {caught:>19} {wronged:>16}")
    say(f"{name}, rounds in which each node was rejected:")
    rounds = [dict(zip(line.clients, line.weights, strict=True)) for line in run.record.rounds]
    for client, number in sorted(numbers.items(), key=lambda pair: pair[1]):
        role = plan.attack if plan.is_malicious(number) else "honest"
        say(f"  {node_name(number)} ({role}): {format_share([not weights.get(client) for weights in rounds])}")


def format_share(rejected: list[bool]) -> str:
    return f"{sum(rejected)} of {len(rejected)}" if rejected else "–"


def say(*words: Any) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except FederationFailed as problem:
        sys.exit(str(problem))
