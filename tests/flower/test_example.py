"""The example on a real SuperLink: malicious and silent nodes, kill -9, TLS and node authentication. Takes minutes."""

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
    # flwr 1.41 joins the folders of its database migrations with spaces, so the tables are never made.
    pytest.skip("flwr needs an installation path without spaces to create a database", allow_module_level=True)

pytestmark = pytest.mark.federation

APP = Path(__file__).parents[2] / "examples" / "flower"
STEPS = Path(__file__).parent / "steps_app"
MALICIOUS = ("malicious-0", "malicious-1")
HONEST = tuple(f"honest-{i}" for i in range(5))
SILENT = ("silent-0",)
N_PARTITIONS = len(MALICIOUS + HONEST)
TIMEOUT = 600.0  # seconds; on an idle computer nothing here takes more than half a minute


def start_nodes(federation: Loopback, names: tuple[str, ...], **config: str | bool) -> None:
    for name in names:
        partition = (MALICIOUS + HONEST + SILENT).index(name) % N_PARTITIONS
        federation.start_supernode(name, {"partition-id": partition, "num-partitions": N_PARTITIONS, **config})


def wait_for_nodes(federation: Loopback, names: tuple[str, ...]) -> None:
    federation.wait_for(lambda: all(map(federation.get_node_id, names)), "starting SuperNodes", TIMEOUT)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """Seven nodes, two of them malicious. One federation for several tests: starting it takes longer than a test."""
    folder = tmp_path_factory.mktemp("federation")
    with Loopback(folder) as running:
        running.start_superlink()
        start_nodes(running, MALICIOUS, attack="inner-product")
        start_nodes(running, HONEST)
        wait_for_nodes(running, MALICIOUS + HONEST)
        yield running
    assert not find_processes(folder)


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


def count_rounds(folder: Path) -> int:
    return len(read_run(folder).rounds) if (folder / "records.jsonl").exists() else 0


def get_reasons(federation: Loopback, run: RunRecord, number: int) -> dict[str, str | None]:
    """Why the reply of each node was rejected in a round; None: it counted."""
    names = {federation.get_node_id(name): name for name in MALICIOUS + HONEST + SILENT}
    line = run.rounds[number]
    return {names[client]: reason for client, reason in zip(line.clients, line.reasons, strict=True)}


@pytest.fixture(scope="module")
def interrupted(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """The folder of a run of two rounds, and its records after the first, when the SuperLink was killed.

    The quorum is all nodes. If an honest reply were missing, Multi-Krum would expect fewer malicious replies than there
    are, and accept one of them. The deadline is long because only nodes that never reply would make a round last.
    """
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    settings: dict[str, str | int | float | bool] = {
        "num_server_rounds": 2, "min_nodes": N_PARTITIONS, "quorum": N_PARTITIONS, "deadline": TIMEOUT,
        "checkpoint_dir": str(folder),
    }  # fmt: skip
    federation.submit(APP, **settings)
    federation.wait_for(lambda: (folder / "checkpoint.safetensors").exists(), "the first round", TIMEOUT)
    federation.stop("superlink", signal.SIGKILL)
    first = read_run(folder)
    federation.start_superlink()
    federation.wait_for_run(federation.submit(APP, **settings, resume=True), TIMEOUT)
    return folder, first


def test_malicious_nodes_are_rejected_and_the_model_learns(
    federation: Loopback, interrupted: tuple[Path, RunRecord]
) -> None:
    folder, _ = interrupted
    run = read_run(folder)
    for number in range(2):
        reasons = get_reasons(federation, run, number)
        assert reasons == {**dict.fromkeys(MALICIOUS, "defense"), **dict.fromkeys(HONEST)}
    assert run.rounds[-1].accuracy is not None
    assert run.rounds[-1].accuracy > 0.6
    subprocess.run([sys.executable, "-m", "cosdefense", "report", folder], check=True, capture_output=True)
    assert (folder / "report.html").exists()


def test_a_killed_superlink_resumes_after_the_last_round(interrupted: tuple[Path, RunRecord]) -> None:
    """The SuperLink and its ServerApp were killed after the first round. A run with resume=true did the second."""
    folder, first = interrupted
    assert len(first.rounds) == 1
    rounds = read_run(folder).rounds
    assert [line.round for line in rounds] == [0, 1]
    assert rounds[0] == first.rounds[0]
    assert rounds[1].skipped is None


@pytest.mark.usefixtures("interrupted")  # before this test kills a node
def test_silent_and_killed_nodes_do_not_stop_the_others(federation: Loopback, tmp_path: Path) -> None:
    """One node never replies, another is killed: every round ends at its deadline and counts the others."""
    rehearsal, folder = tmp_path / "rehearsal", tmp_path / "run"
    federation.wait_for_run(federation.submit(STEPS, num_server_rounds=2, checkpoint_dir=str(rehearsal)), TIMEOUT)
    # Twice what a round takes on this computer. Nodes install the app in the first round, so the second is measured.
    deadline = max(5.0, 2 * read_run(rehearsal).rounds[1].seconds["train"])
    start_nodes(federation, SILENT, silent=True)
    wait_for_nodes(federation, SILENT)
    victim, others = HONEST[-1], (*MALICIOUS, *HONEST[:-1])
    run = federation.submit(STEPS, num_server_rounds=4, checkpoint_dir=str(folder), deadline=deadline)
    federation.wait_for(lambda: count_rounds(folder) >= 1, "the first round", TIMEOUT)
    federation.stop(victim, signal.SIGKILL)
    federation.wait_for_run(run, 20 * deadline + TIMEOUT)
    record = read_run(folder)
    assert [line.round for line in record.rounds] == [0, 1, 2, 3]
    assert sum(line.skipped is None for line in record.rounds) >= 3  # four, unless the computer is suddenly busier
    reasons = [get_reasons(federation, record, number) for number in range(4)]
    assert all(nodes.get(name, "not sampled") for nodes in reasons for name in SILENT)
    assert all(nodes.get(victim, "not sampled") for nodes in reasons[2:])
    assert all(any(nodes.get(name, "not sampled") is None for nodes in reasons) for name in others)


REFUSED = {  # what the log of each says
    "wrong authority": "CERTIFICATE_VERIFY_FAILED",
    "plaintext": "Connection attempt failed",
    "unregistered": "Exit Code: 305",  # Flower's exit code for a node that is refused
    "without a key": "Exit Code: 305",
}


def test_tls_and_node_authentication(tmp_path: Path) -> None:
    """Only nodes with the right authority and a registered key can connect."""
    own, foreign = make_certificates(tmp_path / "own"), make_certificates(tmp_path / "foreign")
    keys = [make_node_key(tmp_path / f"key-{i}") for i in range(3)]
    names, folder = ("node-0", "node-1"), tmp_path / "run"
    config = {"partition-id": 0, "num-partitions": 2}
    with Loopback(tmp_path / "federation", own) as federation:
        federation.start_superlink()
        for number, name in enumerate(names):
            federation.register(keys[number])
            federation.start_supernode(name, {**config, "partition-id": number}, key=keys[number])
        federation.start_supernode("wrong authority", config, key=keys[0], ca=foreign.ca)
        federation.start_supernode("plaintext", config, insecure=True)
        federation.start_supernode("unregistered", config, key=keys[2])
        federation.start_supernode("without a key", config)
        wait_for_nodes(federation, names)
        run = federation.submit(STEPS, num_server_rounds=1, min_nodes=2, checkpoint_dir=str(folder))
        federation.wait_for_run(run, TIMEOUT)
        (line,) = read_run(folder).rounds
        assert set(line.clients) == {federation.get_node_id(name) for name in names}
        assert line.weights == (1.0, 1.0)
        for name, text in REFUSED.items():
            federation.wait_for(lambda name=name, text=text: text in federation.read_log(name), name, TIMEOUT)  # type: ignore[misc]
            assert federation.get_node_id(name) is None, federation.read_log(name)
    assert not find_processes(tmp_path / "federation")
