"""The example on a real SuperLink: liars, silence, kill -9, TLS and node authentication. A few minutes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'cosdefense[flower]'")

from certificates import make_certificates, make_node_key
from loopback import COMMANDS, Loopback

from cosdefense.runs.records import RunRecord, read_run

if not (COMMANDS / "flower-superlink").exists():
    pytest.skip("flower-superlink is not installed beside this Python", allow_module_level=True)

if " " in sys.prefix:
    # flwr 1.41 joins the folders of its database's migrations with spaces: the tables are never made.
    pytest.skip(
        "a SuperLink makes no database where flwr is installed below a path with a space", allow_module_level=True
    )

pytestmark = pytest.mark.federation

APP = Path(__file__).parents[2] / "examples" / "flower"
STEPS = Path(__file__).parent / "steps_app"
LIARS, HONEST, SILENT = (
    ("liar-0", "liar-1"),
    tuple(f"honest-{i}" for i in range(5)),
    tuple(f"silent-{i}" for i in range(3)),
)
N_PARTITIONS = len(LIARS + HONEST)
PATIENCE = 240.0  # seconds; for machines that are busy with other things


def start_nodes(federation: Loopback, names: tuple[str, ...], **config: str | bool) -> None:
    for name in names:
        partition = (LIARS + HONEST + SILENT).index(name) % N_PARTITIONS
        federation.start_supernode(name, {"partition-id": partition, "num-partitions": N_PARTITIONS, **config})
    federation.wait_for(lambda: all(federation.node_id(name) for name in names), "starting SuperNodes", PATIENCE)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Seven nodes, two of which lie while a run is a drill. One for all tests: starting it takes longer than a test."""
    folder = tmp_path_factory.mktemp("federation")
    with Loopback(folder) as running:
        running.start_superlink()
        start_nodes(running, LIARS, **{"red-team": "inner-product"})
        start_nodes(running, HONEST)
        yield running
    assert not leftovers(folder)


def leftovers(folder: Path) -> list[str]:
    """Processes that were started for a federation in this folder and are still there."""
    end, found = time.monotonic() + 10, ["?"]
    while found and time.monotonic() < end:
        time.sleep(0.2)
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"FLWR_HOME={folder / 'flwr'}".encode() in (process / "environ").read_bytes()
                zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:  # ended, or another user's
                continue
            found += [(process / "cmdline").read_text()] if mine and not zombie else []
    return found


def records(folder: Path) -> RunRecord | None:
    return read_run(folder) if (folder / "records.jsonl").exists() else None


def rounds_done(folder: Path) -> int:
    found = records(folder)
    return len(found.rounds) if found else 0


def reasons(federation: Loopback, run: RunRecord, number: int) -> dict[str, str | None]:
    """What became of every node's reply in a round."""
    names = {federation.node_id(name): name for name in LIARS + HONEST + SILENT}
    line = run.rounds[number]
    return {names[client]: reason for client, reason in zip(line.clients, line.reasons, strict=True)}


@pytest.fixture(scope="module")
def interrupted(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """The folder of a run of two rounds; and its records after the first, when the SuperLink and its ServerApp died."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    settings: dict[str, str | int | float | bool] = {
        "num_server_rounds": 2, "min_nodes": N_PARTITIONS, "checkpoint_dir": str(folder),
    }  # fmt: skip
    federation.submit(APP, **settings)
    federation.wait_for(lambda: (folder / "checkpoint.safetensors").exists(), "the first round", PATIENCE)
    federation.end("superlink", signal.SIGKILL)
    first = read_run(folder)
    federation.start_superlink()
    federation.finish(federation.submit(APP, **settings, resume=True), PATIENCE)
    return folder, first


def test_liars_are_rejected_and_the_model_learns(federation: Loopback, interrupted: tuple[Path, RunRecord]) -> None:
    folder, _ = interrupted
    found = read_run(folder)
    for number in range(2):
        became = reasons(federation, found, number)
        assert set(became) == {*LIARS, *HONEST}
        assert {name for name, reason in became.items() if reason} == set(LIARS)
        assert {became[name] for name in LIARS} == {"defense"}
    assert found.rounds[-1].accuracy is not None
    assert found.rounds[-1].accuracy > 0.6
    subprocess.run([sys.executable, "-m", "cosdefense", "report", folder], check=True, capture_output=True)
    assert (folder / "report.html").exists()


def test_a_killed_superlink_goes_on_where_it_was(interrupted: tuple[Path, RunRecord]) -> None:
    """The SuperLink and its ServerApp died after the first round; a new run with resume=true did the second one."""
    folder, first = interrupted
    assert len(first.rounds) == 1
    found = read_run(folder).rounds
    assert [line.round for line in found] == [0, 1]
    assert found[0] == first.rounds[0]
    assert found[1].skipped is None


def test_ten_rounds_with_silent_nodes_and_a_killed_one(federation: Loopback, tmp_path: Path) -> None:
    """Three of ten never answer, one more dies in a round: every round ends at the deadline with the others."""
    rehearsal, folder = tmp_path / "rehearsal", tmp_path / "run"
    federation.finish(federation.submit(STEPS, num_server_rounds=2, checkpoint_dir=str(rehearsal)), PATIENCE)
    deadline = max(6.0, 2 * read_run(rehearsal).rounds[1].seconds["train"])  # in the first one nodes get the app
    start_nodes(federation, SILENT, silent=True)
    victim, others = HONEST[-1], (*LIARS, *HONEST[:-1])
    run = federation.submit(STEPS, checkpoint_dir=str(folder), deadline=deadline)
    federation.wait_for(lambda: rounds_done(folder) >= 2, "two rounds", PATIENCE)
    before = federation.log(victim).count("Receiving: train message")
    federation.wait_for(
        lambda: federation.log(victim).count("Receiving: train message") > before, "its next message", PATIENCE
    )
    federation.end(victim, signal.SIGKILL)
    federation.finish(run, 20 * deadline + PATIENCE)
    found = read_run(folder)
    assert len(found.rounds) == 10
    assert sum(line.skipped is None for line in found.rounds) >= 8  # ten, unless the computer is suddenly busier
    became = [reasons(federation, found, number) for number in range(10)]
    assert all(nodes.get(name, "not asked") for nodes in became for name in SILENT)
    assert all(nodes.get(victim, "not asked") for nodes in became[3:])
    assert all(any(nodes.get(name, "not asked") is None for nodes in became) for name in others)
    for name in SILENT:
        federation.end(name)


STRANGERS = {  # what each of them is told, or finds
    "wrong authority": "CERTIFICATE_VERIFY_FAILED",
    "plaintext": "Connection attempt failed",
    "unregistered": "Exit Code: 305",  # Flower's exit code for a node that is not let in
    "without a key": "Exit Code: 305",
}


def test_tls_and_node_authentication(tmp_path: Path) -> None:
    """Who has the right authority and a registered key takes part; nobody else gets in."""
    own, foreign = make_certificates(tmp_path / "own"), make_certificates(tmp_path / "foreign")
    keys = [make_node_key(tmp_path / f"key-{i}") for i in range(3)]
    anybody = {"partition-id": 0, "num-partitions": 2}
    with Loopback(tmp_path / "federation", own) as federation:
        federation.start_superlink()
        for number, key in enumerate(keys[:2]):
            federation.register(key)
            federation.start_supernode(f"node-{number}", {"partition-id": number, "num-partitions": 2}, key=key)
        federation.start_supernode("wrong authority", anybody, key=keys[0], ca=foreign.ca)
        federation.start_supernode("plaintext", anybody, insecure=True)
        federation.start_supernode("unregistered", anybody, key=keys[2])
        federation.start_supernode("without a key", anybody)
        federation.wait_for(lambda: all(map(federation.node_id, ("node-0", "node-1"))), "joining", PATIENCE)
        folder = tmp_path / "run"
        run = federation.submit(
            APP, num_server_rounds=1, min_nodes=2, quorum=2, defense="none", checkpoint_dir=str(folder)
        )
        federation.finish(run, PATIENCE)
        (line,) = read_run(folder).rounds
        assert set(line.clients) == {federation.node_id("node-0"), federation.node_id("node-1")}
        assert line.weights == (1.0, 1.0)
        for stranger, told in STRANGERS.items():
            federation.wait_for(lambda name=stranger, text=told: text in federation.log(name), stranger, PATIENCE)
            assert federation.node_id(stranger) is None, federation.log(stranger)
    assert not leftovers(tmp_path / "federation")
