"""One real federation with TLS, node authentication and a proxy: attacked, killed, resumed. Takes a minute."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

import httpx
from apis import register
from certificates import Certificates, make_certificates, make_node_key
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fleet_node import Answer, FleetNode
from honest import run_client_app
from hostile import HOSTILE, answer_honestly
from loopback import COMMANDS, Loopback, free_port
from proxy import NGINX
from watching import ROUNDS, STATE, TEXT, Metrics, open_live_page, scrape

from browser import BROWSER, NAMES, Browser
from commands import called
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
MALICIOUS, HONEST = ("malicious-0",), tuple(f"honest-{i}" for i in range(4))
NODES = MALICIOUS + HONEST
# The other nodes are in this process: a SuperNode starts Python for each message.
SUPERNODES, VICTIM = NODES[:2], NODES[1]
LATE = "late"
RECEIVED, COMPLETE = "Receiving: train message", "Received successfully"  # in the log of a node
TIMEOUT = 600.0  # seconds; on an idle computer nothing here takes more than half a minute


def find_processes(folder: Path) -> list[str]:
    """Processes of the federation in this folder that are still running a minute after it was stopped."""
    end, running = time.monotonic() + 60, ["?"]
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


def get_reasons(ids: dict[str, int], line: RoundRecord) -> dict[str, str | None]:
    """Why the reply of each sampled node was rejected in a round; None: it counted."""
    names = {node: name for name, node in ids.items()}
    return {names[client]: reason for client, reason in zip(line.clients, line.reasons, strict=True)}


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@dataclass(frozen=True)
class Federation:
    """Five nodes, two of them SuperNodes. One SuperNode is malicious when it runs the example."""

    running: Loopback
    certificates: Certificates
    ids: dict[str, int]


def join(running: Loopback, certificates: Certificates, answer: Answer, delay: float = 0.0) -> FleetNode:
    """A node in this process with a registered key."""
    key = ec.generate_private_key(ec.SECP384R1())
    register(running.address, certificates.ca, key)
    return FleetNode(running.node_address, certificates.ca, key, answer, delay)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    certificates = make_certificates(folder / "secrets")
    with Loopback(folder / "running", certificates) as running, ExitStack() as stack:
        running.start_superlink()
        if NGINX:
            running.start_proxy()
        for number, name in enumerate(SUPERNODES):
            key = make_node_key(folder / "secrets" / name)
            if number:
                register(running.address, certificates.ca, load_key(key))
            else:
                running.register(key)  # with the command that the guide shows
            config: dict[str, str | int | bool] = {"partition-id": number, "num-partitions": len(NODES)}
            running.start_supernode(
                name, {**config, "attack": "inner-product"} if name in MALICIOUS else config, key=key
            )
        ids = {}
        for number, name in enumerate(NODES):
            if name not in SUPERNODES:
                answer = run_client_app(APP, number, len(NODES))
                ids[name] = stack.enter_context(join(running, certificates, answer)).node.node_id
        running.wait_for(lambda: all(map(running.get_node_id, SUPERNODES)), "starting SuperNodes", TIMEOUT)
        ids |= {name: running.get_node_id(name) or 0 for name in SUPERNODES}
        yield Federation(running, certificates, ids)
    assert not find_processes(folder / "running")


# ---- the example: malicious nodes, and a SuperLink that is killed


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interrupted") / "run"


@pytest.fixture(scope="module")
def page(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser | None]:
    """The live page of the run, opened in a browser before the run begins. None: there is no browser."""
    if BROWSER is None:
        yield None
        return
    with open_live_page(run_folder, tmp_path_factory.mktemp("page")) as opened:
        yield opened


@dataclass(frozen=True)
class InterruptedRun:
    """A run of two rounds whose SuperLink was killed in the second, and what was seen of it before that."""

    folder: Path
    first: RunRecord
    metrics: Metrics
    page: str  # the text of the live page; empty without a browser


@pytest.fixture(scope="module")
def interrupted(federation: Federation, run_folder: Path, page: Browser | None) -> InterruptedRun:
    """The quorum is all nodes, and the deadline is long because no node is silent.

    If an honest reply were missing, Multi-Krum would expect fewer malicious replies than there are, and accept one of
    them. Rounds end when all have replied.
    """
    folder, running, port = run_folder, federation.running, free_port()
    settings: dict[str, str | int | float | bool] = {
        "num_server_rounds": 2, "min_nodes": len(NODES), "quorum": len(NODES), "deadline": TIMEOUT,
        "checkpoint_dir": str(folder), "silence": 40.0, "metrics_port": port,
    }  # fmt: skip
    running.submit(APP, **settings)
    running.wait_for(lambda: (folder / "checkpoint.safetensors").exists(), "the first round", TIMEOUT)
    metrics = scrape(port, 1)
    text = str(page.wait_for(f"{ROUNDS} === '1' && {STATE} === 'running' && {TEXT}")) if page else ""
    # A node that knows of a message whose arrays are missing, because the SuperLink was killed, asks for a minute.
    running.wait_for(
        lambda: all(running.read_log(name).count(COMPLETE) == 2 for name in SUPERNODES), "round 2", TIMEOUT
    )
    with paused(running):
        kill_superlink_alone(running)
        running.wait_for(lambda: is_unlocked(folder), "the end of the orphaned ServerApp", TIMEOUT)
        running.stop("superlink", signal.SIGKILL)
        first = read_run(folder)
        if page:
            page.wait_for(f"{STATE} === 'stopped'")
        running.start_superlink()
    running.wait_for_run(running.submit(APP, **settings, resume=True), TIMEOUT)
    return InterruptedRun(folder, first, metrics, text)


@contextmanager
def paused(running: Loopback) -> Iterator[None]:
    """SuperNodes do nothing meanwhile: after some failed attempts they would wait for most of a minute."""
    for name in SUPERNODES:
        os.killpg(running.processes[name].pid, signal.SIGSTOP)
    yield
    for name in SUPERNODES:
        os.killpg(running.processes[name].pid, signal.SIGCONT)


def kill_superlink_alone(running: Loopback) -> None:
    """Not the processes that it started: its ServerApp is orphaned."""
    superlink = running.processes["superlink"]
    superlink.kill()
    superlink.wait()


def is_unlocked(folder: Path) -> bool:
    try:
        with RunFolder(folder).lock():
            return True
    except RunInUse:
        return False


def test_malicious_nodes_are_rejected_and_the_model_learns(
    federation: Federation, interrupted: InterruptedRun, tmp_path: Path
) -> None:
    folder = interrupted.folder
    rounds = read_run(folder).rounds
    for line in rounds:
        expected = {**dict.fromkeys(MALICIOUS, "defense"), **dict.fromkeys(HONEST)}
        assert get_reasons(federation.ids, line) == expected
    assert rounds[-1].accuracy is not None
    assert rounds[-1].accuracy > 0.6
    assert called("report", str(folder), cwd=tmp_path).returncode == 0
    assert (folder / "report.html").exists()


def test_a_killed_superlink_resumes_after_the_last_round(interrupted: InterruptedRun) -> None:
    """The SuperLink was killed after the first round. Its ServerApp ended without another record and released the lock.

    A run with resume=true did the second round.
    """
    first, rounds = interrupted.first.rounds, read_run(interrupted.folder).rounds
    assert len(first) == 1
    assert [line.round for line in rounds] == [0, 1]
    assert rounds[0] == first[0]
    assert rounds[1].skipped is None


def test_the_live_page_follows_the_run_in_a_browser(
    federation: Federation, interrupted: InterruptedRun, page: Browser | None
) -> None:
    """It was opened before the run began, and saw it running, stopped and resumed without being loaded again."""
    if page is None:
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    accuracies = [f"{100 * (line.accuracy or 0):.1f} %" for line in read_run(interrupted.folder).rounds]
    assert f"{federation.ids[MALICIOUS[0]]} defense" in interrupted.page
    assert f"{len(HONEST)} of {len(NODES)}" in interrupted.page
    assert accuracies[0] in interrupted.page
    assert accuracies[1] not in interrupted.page
    page.wait_for(f"{ROUNDS} === '2,1' && {STATE} === 'finished'")
    assert accuracies[1] in str(page.evaluate(TEXT))
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_the_server_app_serves_prometheus_metrics(federation: Federation, interrupted: InterruptedRun) -> None:
    """Scraped over HTTP after the first round, while the second was running."""
    (line,), served = interrupted.first.rounds, interrupted.metrics
    expected: Metrics = {
        ("cosdefense_rounds_total", ()): 1, ("cosdefense_skipped_rounds_total", ()): 0,
        ("cosdefense_replies_accepted_total", ()): len(HONEST), ("cosdefense_last_round_nodes", ()): len(NODES),
        ("cosdefense_replies_rejected_total", ("defense",)): len(MALICIOUS),
    }  # fmt: skip
    for name, node in federation.ids.items():
        expected["cosdefense_node_accepted_total", ("", str(node))] = name in HONEST
        expected["cosdefense_node_rejected_total", ("", str(node))] = name in MALICIOUS
    assert {key: served.get(key) for key in expected} == expected
    # Records are rounded.
    assert served["cosdefense_accuracy", ()] == pytest.approx(line.accuracy, abs=1e-6)
    assert served["cosdefense_phase_seconds_total", ("train",)] == pytest.approx(line.seconds["train"], abs=1e-3)


# ---- hostile nodes of every kind, and a node that is killed

EXPECTED = {  # why each hostile node is rejected
    "malformed header": "shape", "times 1e30": "norm", "sign flip": "defense",
    "silent": "late", "wrong metrics": "examples", LATE: "late",
}  # fmt: skip


def test_a_federation_with_hostile_nodes_learns_as_without_them(
    federation: Federation, interrupted: InterruptedRun, tmp_path: Path
) -> None:
    """Each hostile node is rejected in every round, and rounds end at their deadline. One SuperNode is killed.

    The node with poisoned buffers may be accepted: no filter looks at buffers, and their median is not its own. It is
    named all the same.
    """
    running, ids, folder = federation.running, dict(federation.ids), tmp_path / "run"
    # Twice as long as a round of the example takes here, in which SuperNodes import torch.
    deadline = max(12.0, 2 * interrupted.first.rounds[0].seconds["train"])
    answers: dict[str, Answer] = {f"fleet-{seed}": answer_honestly(seed) for seed in range(10, 13)}
    answers |= HOSTILE | {LATE: answer_honestly(20)}
    with ExitStack() as stack:
        for name, answer in answers.items():
            delay = 1.3 * deadline + 3 if name == LATE else 0.0  # it replies while the next round runs
            node = join(running, federation.certificates, answer, delay)
            ids[name] = stack.enter_context(node).node.node_id
        n_messages = running.read_log(VICTIM).count(RECEIVED)
        run = running.submit(
            STEPS, num_server_rounds=2, min_nodes=len(ids) - 1, quorum=8, contamination=0.2, deadline=deadline,
            checkpoint_dir=str(folder),
        )  # fmt: skip
        running.wait_for(lambda: running.read_log(VICTIM).count(RECEIVED) > n_messages, "the first message", TIMEOUT)
        running.stop(VICTIM, signal.SIGKILL)
        running.wait_for_run(run, 10 * deadline + TIMEOUT)
    rounds = read_run(folder).rounds
    assert [line.skipped for line in rounds] == [None, None]
    for line in rounds:
        reasons = get_reasons(ids, line)
        assert {name: reasons[name] for name in EXPECTED} == EXPECTED
        others = [reasons[name] for name in ids if name not in EXPECTED and name != VICTIM]
        assert set(others) <= {None, "defense"}
        assert others.count("defense") <= 1  # Multi-Krum rejects a fixed share
        unusual = {name for name, node in ids.items() if node in line.notes["buffers"]}
        assert {"poisoned buffers"} <= unusual <= {"poisoned buffers", "sign flip"}
    # In the first round it may have replied before it was killed.
    assert get_reasons(ids, rounds[1]).get(VICTIM, "not connected") is not None
    assert rounds[1].accuracy == 1.0  # what the same nodes reach without the hostile ones


# ---- what a node can reach


def test_nodes_without_a_registered_key_or_the_right_authority_are_refused(
    federation: Federation, tmp_path: Path
) -> None:
    running, ca = federation.running, federation.certificates.ca
    key = ec.generate_private_key(ec.SECP384R1())
    other = make_certificates(tmp_path).ca
    with (
        pytest.raises(httpx.HTTPStatusError, match="412"),
        FleetNode(running.node_address, ca, key, HOSTILE["silent"]),
    ):
        pass
    with (
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        FleetNode(running.node_address, other, key, HOSTILE["silent"]),
    ):
        pass
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://{running.node_address}/v1/fleet/pull-messages").raise_for_status()
    running.start_supernode("without a key", {"partition-id": 0})
    running.wait_for(lambda: "Exit Code: 305" in running.read_log("without a key"), "a refused node", TIMEOUT)
