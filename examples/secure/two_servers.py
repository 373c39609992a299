"""Starts a Flower server, a helper and nodes on this computer, attacks, and searches both servers for updates.

python two_servers.py [--nodes 6] [--malicious 2] [--attack mpaf] [--rounds 3] [--defense NAME] [--out runs/secure]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "flower"))

from loopback import FederationFailed, Loopback, free_port  # noqa: E402
from search import encode_model, encode_update, find, read_copies, read_terms  # noqa: E402

from cosdefense.runs.records import RunRecord, read_run  # noqa: E402


def main() -> None:
    options = parse_options()
    out: Path = options.out.resolve()
    if out.exists():
        sys.exit(f"{out} exists already: choose another folder with --out")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all started processes end then, too
    leader, helper, nodes = (out / name for name in ("leader", "helper", "nodes"))
    for folder in (leader / "messages", nodes / "copies", helper):
        folder.mkdir(parents=True)
    identity = make_keys(leader, helper, nodes, options.nodes)
    compares = options.defense != "cosdefense"
    if compares:
        deal_triples(out / "dealer", leader, helper, options.nodes, options.rounds)
    with Loopback(leader / "logs") as federation:
        address = start_helper(federation, helper)
        say(f"helper on {address}, identity {identity[:8]}…")
        federation.start_superlink()
        for number in range(options.nodes):
            config: dict[str, str | int | bool] = {
                "partition-id": number, "num-partitions": options.nodes, "copies": str(nodes / "copies"),
                "secure-key": str(nodes / f"{name_node(number)}.pem"), "secure-helper": identity, "secure-smallest": 3,
                "secure-comparisons": compares,
            }  # fmt: skip
            attack = {"attack": options.attack} if number < options.malicious else {}
            federation.start_supernode(name_node(number), config | attack)
        names = [name_node(number) for number in range(options.nodes)]
        federation.wait_for(lambda: all(map(federation.get_node_id, names)), "starting the SuperNodes", 300.0)
        say(f"SuperLink on {federation.address}, {options.nodes} SuperNodes, {options.malicious} of them malicious")
        run = federation.submit(
            assemble_app(out / "app"), num_server_rounds=options.rounds, nodes=options.nodes, helper=address,
            defense=options.defense, secrets=str(leader),
            messages=str(leader / "messages"), checkpoint_dir=str(leader / "run"),
        )  # fmt: skip
        federation.wait_for_run(run, 300.0 + 120.0 * options.rounds)
        numbers = {federation.get_node_id(name) or 0: number for number, name in enumerate(names)}
    show(read_run(leader / "run"), numbers, options.malicious)
    search_servers(out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Secure aggregation between two servers, on this computer.")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--malicious", type=int, default=2, help="how many of the nodes attack")
    parser.add_argument("--attack", default="mpaf", help="an attack of `cosdefense list`")
    parser.add_argument("--rounds", type=int, default=3)
    choices = ("cosdefense", "two-references", "opposed-clusters")
    parser.add_argument("--defense", choices=choices, default="cosdefense", help="all but the first need a dealer")
    parser.add_argument("--out", type=Path, default=Path("runs/secure"), help="keys, logs, records; must be new")
    return parser.parse_args()


def make_keys(leader: Path, helper: Path, nodes: Path, n_nodes: int) -> str:
    """What the three kinds of operators do. Returns the helper's public key, which every node is told."""
    told = command("keys", str(helper), "--host", "localhost")
    command("leader-key", str(leader / "leader.crt"))
    shutil.copy(helper / "helper.crt", leader)  # the two operators exchange their certificates
    shutil.copy(leader / "leader.crt", helper)
    lines = [command("node-key", str(nodes / f"{name_node(n)}.pem"), "--name", name_node(n)) for n in range(n_nodes)]
    (helper / "nodes.toml").write_text("".join(lines))
    return told.rpartition("secure-helper=")[2].strip()


def deal_triples(dealer: Path, leader: Path, helper: Path, n_nodes: int, rounds: int) -> None:
    """What a third operator does for rules that compare clients: each server gets a file, and none is kept."""
    command("deal", str(dealer), "--clients", str(n_nodes), "--rounds", str(rounds))
    shutil.move(dealer / "leader.triples", leader)
    shutil.move(dealer / "helper.triples", helper)
    settings = helper / "helper.toml"
    settings.write_text(settings.read_text().replace("# triples = ", "triples = "))


def command(*arguments: str) -> str:
    """The output of `cosdefense helper …`."""
    line = [sys.executable, "-m", "cosdefense", "helper", *arguments]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


def start_helper(federation: Loopback, folder: Path) -> str:
    port = free_port()
    settings = folder / "helper.toml"
    settings.write_text(settings.read_text().replace("0.0.0.0:8443", f"127.0.0.1:{port}"))
    federation.start("helper", [sys.executable, "-m", "cosdefense", "helper", "serve", str(settings)], folder)

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    federation.wait_for(is_listening, "the helper", 120.0)
    return f"https://localhost:{port}"


def assemble_app(folder: Path) -> Path:
    """The app of examples/flower, and the two files that make it secure."""
    shutil.copytree(HERE / "hidden", folder / "hidden", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE.parent / "flower" / "digits", folder / "digits", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "pyproject.toml", folder)
    return folder


def name_node(number: int) -> str:
    return f"node-{number}"


def show(run: RunRecord, numbers: dict[int, int], n_malicious: int) -> None:
    for line in run.rounds:
        outcome = f"skipped: {line.skipped}" if line.skipped else f"accuracy {line.accuracy or 0:.1%}"
        rejected = [numbers[client] for client, weight in zip(line.clients, line.weights, strict=True) if not weight]
        say(f"round {line.round + 1}: {outcome}, rejected: {', '.join(map(name_node, sorted(rejected))) or 'nobody'}")
    verdicts = [pair for line in run.rounds for pair in zip(line.clients, line.weights, strict=True)]
    found = [weight for client, weight in verdicts if numbers[client] < n_malicious]
    mean = sum(found) / max(1, len(found))
    say(f"malicious nodes were rejected {found.count(0)} of {len(found)} times; their mean weight: {mean:.2f}")


def search_servers(out: Path) -> None:
    """Fail if an update is found, or if the global model is not: then the search itself would be broken."""
    servers = [
        path
        for folder in (out / "leader", out / "helper")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("node-")  # logs of the nodes themselves
    ]
    hits, n_updates = list[str](), 0
    for name, start, trained in read_copies(out / "nodes" / "copies"):
        public = b"".join(encode_model(start).values())
        terms = read_terms(out / "leader" / "messages", name)
        hits += find(encode_update(start, trained, terms), servers, public)
        n_updates += 1
    known = find(encode_model(start), servers)
    say(f"searched {len(servers)} files of both servers for {n_updates} updates: {len(hits)} found")
    say(f"for comparison, the global model: found in {len({hit.split(': ')[0] for hit in known})} files")
    if hits or not known:
        sys.exit("\n".join(hits) or "the search does not find what is there")


def say(*words: Any) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except FederationFailed as problem:
        sys.exit(str(problem))
