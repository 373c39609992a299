"""The example on a real SuperLink: malicious and silent nodes, kill -9, TLS and node authentication. Takes minutes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'cosdefense[flower]'")

from certificates import make_certificates, make_node_key
from loopback import COMMANDS, Loopback

from cosdefense.runs.records import RoundRecord, RunRecord, read_run
from cosdefense.runs.run_folder import RunFolder
from cosdefense.runs.run_lock import RunInUse

if not (COMMANDS / "flower-superlink").exists():
    pytest.skip("flower-superlink is not installed beside this Python", allow_module_level=True)

if " " in sys.prefix:
    # flwr 1.41 joins the folders of its database migrations with spaces, so the tables are never made.
    pytest.skip("flwr needs an installation path without spaces to create a database", allow_module_level=True)

pytestmark = pytest.mark.federation

APP = Path(__file__).parents[2] / "examples" / "flower"
STEPS = Path(__file__).parent / "steps_app"
MALICIOUS = ("malicious-0", "malicious-1")
HONEST = tuple(f"honest-{i}" for i in range(5))
TIMEOUT = 600.0  # seconds; on an idle computer nothing here takes more than half a minute


def wait_for_nodes(federation: Loopback, names: tuple[str, ...]) -> None:
    federation.wait_for(lambda: all(map(federation.get_node_id, names)), "starting SuperNodes", TIMEOUT)


def find_processes(folder: Path) -> list[str]:
    """Processes of the federation in this folder that are still running ten seconds after it was stopped."""
    end, running = time.monotonic() + 10, ["?"]
    while running and time.monotonic() < end:
        time.sleep(0.2)
        running = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = f"FLWR_HOME={folder / 'flwr'}".encode() in (process / "environ").read_bytes()
                is_zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                running += [(process / "cmdline").read_text()] if is_ours and not is_zombie else []
            except OSError:  # ended, or of another user
                continue
    return running


def get_reasons(federation: Loopback, names: tuple[str, ...], line: RoundRecord) -> dict[str, str | None]:
    """Why the reply of each sampled node was rejected in a round; None: it counted."""
    ids = {federation.get_node_id(name): name for name in names}
    return {ids[client]: reason for client, reason in zip(line.clients, line.reasons, strict=True)}


# ---- the example: malicious nodes, and a SuperLink that is killed


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Seven nodes, two of them malicious."""
    folder, names = tmp_path_factory.mktemp("federation"), MALICIOUS + HONEST
    with Loopback(folder) as running:
        running.start_superlink()
        for number, name in enumerate(names):
            config = {"partition-id": number, "num-partitions": len(names)}
            running.start_supernode(name, {**config, "attack": "inner-product"} if name in MALICIOUS else config)
        wait_for_nodes(running, names)
        yield running
    assert not find_processes(folder)


@pytest.fixture(scope="module")
def interrupted(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """The folder of a run of two rounds, and its records after the first, when the SuperLink was killed.

    The quorum is all nodes. If an honest reply were missing, Multi-Krum would expect fewer malicious replies than there
    are, and accept one of them. The deadline is long because no node is silent: rounds end when all have replied.
    """
    folder, n_nodes = tmp_path_factory.mktemp("interrupted") / "run", len(MALICIOUS + HONEST)
    settings: dict[str, str | int | float | bool] = {
        "num_server_rounds": 2, "min_nodes": n_nodes, "quorum": n_nodes, "deadline": TIMEOUT,
        "checkpoint_dir": str(folder),
    }  # fmt: skip
    federation.submit(APP, **settings)
    federation.wait_for(lambda: (folder / "checkpoint.safetensors").exists(), "the first round", TIMEOUT)
    kill_superlink_alone(federation)
    federation.wait_for(lambda: is_unlocked(folder), "the end of the orphaned ServerApp", TIMEOUT)
    federation.stop("superlink", signal.SIGKILL)
    first = read_run(folder)
    federation.start_superlink()
    federation.wait_for_run(federation.submit(APP, **settings, resume=True), TIMEOUT)
    return folder, first


def kill_superlink_alone(federation: Loopback) -> None:
    """Not the processes that it started: its ServerApp is orphaned."""
    superlink = federation.processes["superlink"]
    superlink.kill()
    superlink.wait()


def is_unlocked(folder: Path) -> bool:
    try:
        with RunFolder(folder).lock():
            return True
    except RunInUse:
        return False


def test_malicious_nodes_are_rejected_and_the_model_learns(
    federation: Loopback, interrupted: tuple[Path, RunRecord]
) -> None:
    folder, _ = interrupted
    rounds = read_run(folder).rounds
    for line in rounds:
        reasons = get_reasons(federation, MALICIOUS + HONEST, line)
        assert reasons == {**dict.fromkeys(MALICIOUS, "defense"), **dict.fromkeys(HONEST)}
    assert rounds[-1].accuracy is not None
    assert rounds[-1].accuracy > 0.6
    subprocess.run([sys.executable, "-m", "cosdefense", "report", folder], check=True, capture_output=True)
    assert (folder / "report.html").exists()


def test_a_killed_superlink_resumes_after_the_last_round(interrupted: tuple[Path, RunRecord]) -> None:
    """The SuperLink was killed after the first round. Its ServerApp ended without another record and released the lock.

    A run with resume=true did the second round.
    """
    folder, first = interrupted
    assert len(first.rounds) == 1
    rounds = read_run(folder).rounds
    assert [line.round for line in rounds] == [0, 1]
    assert rounds[0] == first.rounds[0]
    assert rounds[1].skipped is None


# ---- a small federation with TLS: refused, silent and killed nodes

NODES, SILENT = ("node-0", "node-1", "node-2"), "silent"
RECEIVED = "Receiving: train message"  # in the log of a node
REFUSED = {  # what the log of each says
    "wrong authority": "CERTIFICATE_VERIFY_FAILED",
    "plaintext": "Connection attempt failed",
    "unregistered": "Exit Code: 305",  # Flower's exit code for a node that is refused
    "without a key": "Exit Code: 305",
}


@dataclass(frozen=True)
class SecureFederation:
    running: Loopback
    first_run: RunRecord
    silent_key: Path


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureFederation]:
    """Three registered nodes and four that must be refused, after a run of two rounds."""
    folder = tmp_path_factory.mktemp("secure")
    own, foreign = make_certificates(folder / "own"), make_certificates(folder / "foreign")
    keys = {name: make_node_key(folder / name) for name in (*NODES, SILENT, "unregistered")}
    with Loopback(folder / "federation", own) as running:
        running.start_superlink()
        for name in (*NODES, SILENT):
            running.register(keys[name])
        for number, name in enumerate(NODES):
            running.start_supernode(name, {"partition-id": number}, key=keys[name])
        config = {"partition-id": 0}
        running.start_supernode("wrong authority", config, key=keys["node-0"], ca=foreign.ca)
        running.start_supernode("plaintext", config, insecure=True)
        running.start_supernode("unregistered", config, key=keys["unregistered"])
        running.start_supernode("without a key", config)
        wait_for_nodes(running, NODES)
        run = running.submit(
            STEPS, num_server_rounds=2, min_nodes=3, deadline=TIMEOUT, checkpoint_dir=str(folder / "first")
        )
        running.wait_for_run(run, TIMEOUT)
        yield SecureFederation(running, read_run(folder / "first"), keys[SILENT])
    assert not find_processes(folder / "federation")


def test_tls_and_node_authentication(secure: SecureFederation) -> None:
    """Only nodes with the right authority and a registered key can connect."""
    running = secure.running
    for line in secure.first_run.rounds:
        assert set(line.clients) == {running.get_node_id(name) for name in NODES}
        assert line.weights == (1.0, 1.0, 1.0)
    for name, text in REFUSED.items():
        running.wait_for(lambda name=name, text=text: text in running.read_log(name), name, TIMEOUT)  # type: ignore[misc]
        assert running.get_node_id(name) is None, running.read_log(name)


def test_silent_and_killed_nodes_do_not_stop_the_others(secure: SecureFederation, tmp_path: Path) -> None:
    """One node never replies, another is killed in a round: rounds end at their deadline and count the others."""
    running, victim, others = secure.running, NODES[-1], NODES[:-1]
    # Three times what a round takes on this computer. The first round is longer, because nodes install the app.
    deadline = max(6.0, 3 * secure.first_run.rounds[1].seconds["train"])
    running.start_supernode(SILENT, {"partition-id": 3, "silent": True}, key=secure.silent_key)
    wait_for_nodes(running, (SILENT,))
    n_messages = running.read_log(victim).count(RECEIVED)
    run = running.submit(STEPS, num_server_rounds=2, min_nodes=2, deadline=deadline, checkpoint_dir=str(tmp_path))
    running.wait_for(lambda: running.read_log(victim).count(RECEIVED) > n_messages, "the first message", TIMEOUT)
    running.stop(victim, signal.SIGKILL)
    running.wait_for_run(run, 10 * deadline + TIMEOUT)
    rounds = read_run(tmp_path).rounds
    assert [line.skipped for line in rounds] == [None, None]
    reasons = [get_reasons(running, (*NODES, SILENT), line) for line in rounds]
    assert all(nodes.get(SILENT, "not sampled") for nodes in reasons)
    assert reasons[1].get(victim, "not sampled")  # in the first round it may have replied before it was killed
    assert all(nodes[name] is None for nodes in reasons for name in others)
