"""A whole federation on this computer: started, attacked with and without a defense, ended. Says who was rejected.

python federation.py [--secure] [--nodes 10] [--red-team 3] [--attack inner-product] [--defense multi-krum] [--rounds 4]
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
    """How many nodes there are, and what some of them do."""

    nodes: int
    red_team: int
    attack: str

    def node_config(self, number: int) -> dict[str, str | int]:
        config: dict[str, str | int] = {"partition-id": number, "num-partitions": self.nodes}
        return {**config, "red-team": self.attack} if self.lies(number) else config

    def lies(self, number: int) -> bool:
        return number < self.red_team


@dataclass(frozen=True)
class Played:
    """A run that is over."""

    record: RunRecord
    attacked: bool


def main() -> None:
    wanted = parse()
    plan = Plan(wanted.nodes, wanted.red_team, wanted.attack)
    out: Path = wanted.out.resolve()
    if (out / "attacked").exists():
        sys.exit(f"{out} holds a federation already: choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended then, too
    certificates = make_certificates(out / "secrets") if wanted.secure else None
    with Loopback(out / "logs", certificates) as federation:
        say(f"SuperLink and {plan.nodes} SuperNodes on {federation.address}{', with TLS' if wanted.secure else ''}")
        start(federation, plan, out / "secrets")
        runs = {
            f"no attack, {wanted.defense}": (out / "clean" / wanted.defense, wanted.defense, False),
            f"{plan.attack}, no defense": (out / "attacked" / "none", "none", True),
            f"{plan.attack}, {wanted.defense}": (out / "attacked" / wanted.defense, wanted.defense, True),
        }
        found = {}
        for name, (folder, defense, drill) in runs.items():
            say(f"{name}: {wanted.rounds} rounds")
            number = federation.submit(
                APP, num_server_rounds=wanted.rounds, defense=defense, drill=drill, checkpoint_dir=str(folder),
                min_nodes=plan.nodes, quorum=max(2, plan.nodes // 2),
            )  # fmt: skip
            federation.finish(number, 120.0 * wanted.rounds)
            found[name] = Played(read_run(folder), drill)
        nodes = {federation.node_id(node(i)) or 0: i for i in range(plan.nodes)}
    show(found, nodes, plan)
    say("the report of the two attacked runs:")
    subprocess.run([sys.executable, "-m", "cosdefense", "report", out / "attacked"], check=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Flower federation on this computer, attacked and defended.")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--red-team", type=int, default=3, help="how many of them lie")
    parser.add_argument("--attack", default="inner-product", help="an attack of `cosdefense list`")
    parser.add_argument("--defense", default="multi-krum", choices=["multi-krum", "cosdefense"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--secure", action="store_true", help="TLS and node authentication, with keys made for it")
    parser.add_argument("--out", type=Path, default=Path("runs/flower"), help="records, logs, keys; must be new")
    return parser.parse_args()


def start(federation: Loopback, plan: Plan, secrets: Path) -> None:
    federation.start_superlink(database=False)
    for number in range(plan.nodes):
        key = None
        if federation.certificates:
            key = make_node_key(secrets / node(number))
            federation.register(key)
        federation.start_supernode(node(number), plan.node_config(number), key=key)
    ready = [node(number) for number in range(plan.nodes)]
    federation.wait_for(lambda: all(federation.node_id(name) for name in ready), "starting the SuperNodes", 180.0)


def node(number: int) -> str:
    return f"node-{number}"


def show(found: dict[str, Played], nodes: dict[int, int], plan: Plan) -> None:
    """A line per run, then how often each node was rejected in the last one."""
    say(f"{'':32} {'accuracy':>9} {'liars rejected':>15} {'honest rejected':>16}")
    for name, run in found.items():
        verdicts = [verdict for line in run.record.rounds for verdict in zip(line.clients, line.weights, strict=True)]
        liars = {client for client, number in nodes.items() if run.attacked and plan.lies(number)}
        lying = share([not weight for client, weight in verdicts if client in liars])
        honest = share([not weight for client, weight in verdicts if client not in liars])
        say(f"{name:32} {run.record.rounds[-1].accuracy or 0:9.1%} {lying:>15} {honest:>16}")
    say(f"{name}, rounds in which each node was rejected:")
    rounds = [dict(zip(line.clients, line.weights, strict=True)) for line in run.record.rounds]
    for client, number in sorted(nodes.items(), key=lambda pair: pair[1]):
        what = plan.attack if plan.lies(number) else "honest"
        say(f"  {node(number)} ({what}): {share([not weights.get(client) for weights in rounds])}")


def share(rejected: list[bool]) -> str:
    return f"{sum(rejected)} of {len(rejected)}" if rejected else "–"


def say(*words: Any) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except FederationFailed as problem:
        sys.exit(str(problem))
