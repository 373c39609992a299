"""The example as its readers start it: SuperLink, SuperNodes and a helper as processes, an attack, and a search."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from search import cut, encode_update, find, read_copies

pytest.importorskip("flwr", reason="flwr is not installed")

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
    _, start, trained = next(read_copies(out / "nodes" / "copies"))
    for name, data in encode_update(start, trained, 4).items():
        if list(cut(data)):
            (tmp_path / "leak").write_bytes(b"before" + data + b"after")
            assert find({name: data}, [tmp_path / "leak"])
