"""cosdefense watch on a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import called
from cosdefense.catalog.extras import install_hint
from cosdefense.runs.records import RoundRecord
from cosdefense.runs.run_folder import RunFolder

HEADER: dict[str, Any] = {"experiment": {"name": "flower"}, "defense": "MultiKrum", "device": "Flower"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run: node 7 is always rejected, and the last three rounds were skipped."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(HEADER)
    for number in range(8):
        record = RoundRecord(
            number, (5, 6, 7), (1.0, 1.0, 0.0), reasons=(None, None, "defense"), accuracy=0.1 * number,
            scores={"MultiKrum": (0.25, 0.5, 99.0)}, seconds={"train": 1.5}, n_bytes={"train-sent": 3_000_000},
            skipped="no quorum" if number > 4 else None,
        )  # fmt: skip
        folder.append(record)
    folder.finish()
    return folder


def test_the_state_is_printed_once(folder: RunFolder) -> None:
    shown = called("watch", "run", "--once", cwd=folder.path.parent)
    assert shown.returncode == 0, shown.stderr
    printed = " ".join(shown.stdout.split())
    for text in (
        "MultiKrum · finished", "8 rounds, 3 skipped", "accuracy 70.0%", "0 of 8 defense 8× MultiKrum 99",
        "train 12.0 s", "24 MB", "ALARM rounds-skipped: 3 rounds in a row were skipped, the last because: no quorum",
    ):  # fmt: skip
        assert text in printed, text


def test_off_a_terminal_every_round_is_a_line(folder: RunFolder) -> None:
    lines = called("watch", "run", cwd=folder.path.parent).stdout.splitlines()
    assert lines[0] == "finished · run"
    assert lines[1] == "round 1, accuracy 0.0%, 2 of 3 accepted, rejected: 7 defense (MultiKrum 99), 1.5 s"
    assert lines[8].endswith("skipped: no quorum, 1.5 s")
    assert [line.split(":")[0] for line in lines[9:]] == ["ALARM node-rejected", "ALARM rounds-skipped"]


def test_control_characters_of_others_are_never_printed(folder: RunFolder) -> None:
    text = folder.records.read_text().replace("no quorum", "\\u001b]0;owned\\u0007\\u009b31m\\u202e")
    folder.records.write_text(text.replace('"MultiKrum":[', '"\\u001b[2J":['))
    for options in (["--once"], []):
        shown = called("watch", "run", *options, cwd=folder.path.parent)
        assert shown.returncode == 0, shown.stderr
        assert "owned" in shown.stdout
        assert all(character.isprintable() or character == "\n" for character in shown.stdout)


def test_a_server_that_sends_something_else_is_refused(folder: RunFolder) -> None:
    pytest.importorskip("starlette", reason='needs the extra "watch"')
    pytest.importorskip("uvicorn", reason='needs the extra "watch"')
    from serving import serving

    with serving(folder.path) as port:
        url = f"http://127.0.0.1:{port}"
        shown = called("watch", url, cwd=folder.path.parent)  # until the run is finished
        assert shown.returncode == 0, shown.stderr
        assert "round 8, accuracy 70.0%" in shown.stdout
    shown = called("watch", url, cwd=folder.path.parent)
    assert (shown.returncode, "cannot be read" in shown.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--serve", "--address", "0.0.0.0:0"), "COSDEFENSE_WATCH_TOKEN"),
        (("run", "--serve", "--address", "8765"), "HOST:PORT"),
        (("run", "--serve", "--once"), "need a folder"),
        (("http://127.0.0.1:1", "--metrics"), "need a folder"),
        (("http://me:hunter22@127.0.0.1:1",), "the token comes from the environment"),
        (("run/records.jsonl",), "is a file"),
        ((".",), "holds 1 runs; name one of them: run"),
    ],
)
def test_mistakes(folder: RunFolder, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSDEFENSE_WATCH_TOKEN", raising=False)
    shown = called("watch", *arguments, cwd=folder.path.parent)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert "hunter22" not in shown.stderr


def test_a_folder_without_records_is_waited_for(tmp_path: Path) -> None:
    shown = called("watch", "later", "--once", cwd=tmp_path)
    assert (shown.returncode, "waiting for the first round · later" in shown.stdout) == (0, True)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "records.jsonl").write_text(json.dumps({"something": "else"}) + "\n")
    assert "unreadable" in called("watch", "later", "--once", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("module", "option", "extra"),
    [("uvicorn", "--serve", "watch"), ("prometheus_client", "--metrics", "metrics")],
)
def test_missing_libraries_are_named(
    tmp_path: Path, module: str, option: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("server", "prometheus"):  # as if they were not imported yet
        monkeypatch.delitem(sys.modules, f"cosdefense.monitor.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    shown = called("watch", ".", option, "--address", "127.0.0.1:0", cwd=tmp_path)
    assert shown.returncode == 1
    assert f"{module} was not found: {install_hint(extra)}" in shown.stderr
