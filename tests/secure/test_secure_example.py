"""The example as its readers start it: SuperLink, SuperNodes and a helper as processes, an attack, and a search."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from certificates import make_certificates, make_node_key
from loopback import Loopback
from search import cut, encode_update, find, read_copies, read_terms
from secure_examples import thorough
from two_servers import assemble_app, make_keys, name_node, start_helper

from cosdefense import Cohort, Layout, get
from cosdefense.runs.checkpoint import read_checkpoint
from cosdefense.runs.records import read_run
from cosdefense.secure import Secure
from cosdefense.secure.helper_state import HelperState

pytest.importorskip("flwr", reason="flwr is not installed")

GONE = ("error", "late")  # the SuperLink answers for a node that is gone, or nobody does
SCRIPT = Path(__file__).parents[2] / "examples" / "secure" / "two_servers.py"

if not (Path(sys.executable).parent / "flower-superlink").exists():
    pytest.skip("flower-superlink is not installed beside this Python", allow_module_level=True)

if " " in sys.prefix:
    # flwr 1.41 joins the folders of its database migrations with spaces, so the tables are never made.
    pytest.skip("flwr needs an installation path without spaces to create a database", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.federation
def test_two_servers_reject_what_they_do_not_see(tmp_path: Path) -> None:
    out = tmp_path / "run"
    line = [sys.executable, str(SCRIPT), "--nodes", "4", "--malicious", "1", "--rounds", "1", "--out", str(out)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"round 1: accuracy \S+%, rejected: node-0\n", done.stdout)
    assert "malicious nodes were rejected 1 of 1 times" in done.stdout
    assert re.search(r"for 4 updates: 0 found", done.stdout)
    helper = (out / "helper" / "helper.log").read_text()
    assert "ticket 1 for 4 clients" in helper
    assert "round 1: 3 accepted, sum given" in helper
    # The search finds an update where there is one.
    copy, start, trained = next(read_copies(out / "nodes" / "copies"))
    for name, data in encode_update(start, trained, read_terms(out / "leader" / "messages", copy)).items():
        if list(cut(data)):
            (tmp_path / "leak").write_bytes(b"before" + data + b"after")
            assert find({name: data}, [tmp_path / "leak"])


@pytest.mark.slow
@pytest.mark.federation
def test_two_references_compare_what_no_server_sees(tmp_path: Path) -> None:
    """In the first round the rule knows nothing. In the second it compares with the mean, which is kept in halves."""
    out = tmp_path / "run"
    line = [sys.executable, str(SCRIPT), "--defense", "two-references"]
    line += ["--nodes", "5", "--malicious", "1", "--rounds", "2"]
    done = subprocess.run([*line, "--out", str(out)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"for 10 updates: 0 found", done.stdout)
    first, second = read_run(out / "leader" / "run").rounds
    assert first.skipped is second.skipped is None
    assert len(first.clients) == len(second.clients) == 5
    opposed = [score is not None and score > 0 for score in second.scores["TwoReferences"]]
    assert opposed.count(True) == 1  # only the malicious node opposes both references
    assert second.weights[opposed.index(True)] == min(second.weights) < 0.7
    helper = (out / "helper" / "helper.log").read_text()
    assert [f"round {n}: 5 reports compared, triple {n - 1}" in helper for n in (1, 2)] == [True, True]
    assert helper.count("sum given") == 2
    assert (out / "helper" / "helper.state.mean.2").exists()
    # The search finds an update where there is one, in the words that are divided into halves.
    copy, start, trained = next(read_copies(out / "nodes" / "copies"))
    words = encode_update(start, trained, read_terms(out / "leader" / "messages", copy))["encoded words"]
    (tmp_path / "leak").write_bytes(b"before" + words + b"after")
    assert find({"words": words}, [tmp_path / "leak"])


@contextmanager
def start_federation(folder: Path, n: int) -> Iterator[tuple[Loopback, dict[str, str]]]:
    """All on TLS, with authenticated nodes: the SuperLink, its nodes, and the helper. Also gives options of the app."""
    leader, helper, nodes = folder / "leader", folder / "helper", folder / "nodes"
    for path in (leader / "messages", nodes / "copies", helper):
        path.mkdir(parents=True)
    identity = make_keys(leader, helper, nodes, n)
    with Loopback(leader / "logs", make_certificates(leader / "secrets")) as federation:
        address = start_helper(federation, helper)
        federation.start_superlink()
        for number in range(n):
            key = make_node_key(nodes / f"{name_node(number)}-auth")
            federation.register(key)
            config: dict[str, str | int | bool] = {
                "partition-id": number, "num-partitions": n, "copies": str(nodes / "copies"),
                "secure-key": str(nodes / f"{name_node(number)}.pem"), "secure-helper": identity,
            }  # fmt: skip
            attack = {"attack": "mpaf"} if number == 0 else {}
            federation.start_supernode(name_node(number), config | attack, key=key)
        yield federation, {
            "helper": address, "secrets": str(leader), "messages": str(leader / "messages"),
            "checkpoint_dir": str(leader / "run"),
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.federation
def test_a_helper_killed_in_the_second_round_costs_that_round(tmp_path: Path) -> None:
    n, helper = 4, tmp_path / "helper"
    log = helper / "helper.log"
    with start_federation(tmp_path, n) as (federation, options):
        run = federation.submit(assemble_app(tmp_path / "app"), num_server_rounds=3, nodes=n, **options)
        federation.wait_for(lambda: "ticket 2 for" in log.read_text(), "the second round", 600.0)
        federation.stop("helper", signal.SIGKILL)
        line = [sys.executable, "-m", "cosdefense", "helper", "serve", str(helper / "helper.toml")]
        federation.start("helper", line, helper)
        federation.wait_for_run(run, 600.0)
    rounds = read_run(tmp_path / "leader" / "run").rounds
    assert [record.skipped for record in rounds] == [None, "the helper: round 2 is not the current one", None]
    assert [len(record.clients) for record in rounds] == [n] * 3
    state = HelperState.load(helper / "helper.state")
    assert (state.issued, state.settled) == (3, 3)
    assert log.read_text().count("sum given") == 2
    check_against_the_twin(tmp_path)


@thorough
@pytest.mark.slow
@pytest.mark.federation
def test_a_killed_node_is_not_in_the_sum(tmp_path: Path) -> None:
    n, log = 6, tmp_path / "helper" / "helper.log"
    with start_federation(tmp_path, n) as (federation, options):
        run = federation.submit(assemble_app(tmp_path / "app"), num_server_rounds=2, nodes=n, deadline=60.0, **options)
        federation.wait_for(lambda: "ticket 2 for" in log.read_text(), "the second round", 600.0)
        federation.stop(name_node(n - 1), signal.SIGKILL)
        federation.wait_for_run(run, 600.0)
    rounds = read_run(tmp_path / "leader" / "run").rounds
    assert [record.skipped for record in rounds] == [None, None]
    assert [sum(reason in GONE for reason in record.reasons) for record in rounds] == [0, 1]
    check_against_the_twin(tmp_path)


def check_against_the_twin(folder: Path) -> None:
    """Decisions and models are those of `Secure.plain` on what the nodes trained, which they kept a copy of."""
    run = folder / "leader" / "run"
    twin = Secure(get("cosdefense"), clip=4.0, colluders=0.2).plain
    copies = {name: (dict(start), dict(trained)) for name, start, trained in read_copies(folder / "nodes" / "copies")}
    layout = Layout.of(next(iter(copies.values()))[0])
    after, lengths = None, []
    for line in (line for line in read_run(run).rounds if line.skipped is None):
        verdicts = zip(line.clients, line.reasons, line.weights, strict=True)
        present = {client: weight for client, reason, weight in verdicts if reason not in GONE}
        found = [copies[f"{client}-{line.round + 1}"] for client in present]
        params = layout.flatten(found[0][0])
        assert after is None or torch.equal(params, after)  # the model of the last round that counts
        rows = torch.stack([layout.flatten(trained) - params for _, trained in found])
        verdict, _ = twin(Cohort.of(rows, params, layout), twin.init())
        assert list(present.values()) == verdict.weights.tolist()
        after = params + verdict.update
        lengths.append(float(rows.norm(dim=1).max()))
    tensors = read_checkpoint(run / "checkpoint.safetensors").tensors
    saved = {name.removeprefix("model."): t.numpy() for name, t in tensors.items() if name.startswith("model.")}
    assert after is not None
    assert torch.equal(layout.flatten(saved), after)
    assert min(lengths) > 4.0  # the malicious node's update was longer than the clip, in every round
