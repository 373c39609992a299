"""The commands as a user types them: what they print, where they write, and how they exit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cosdefense
from commands import called, environment
from forked import run_command
from held_runs import HELD, held
from worlds import TINY

TOML = """
name = "tiny"
[data]
dataset = "digits"
clients = 20
[model]
name = "mlp"
[training]
rounds = 6
sampled = 5
batch = 4
evaluate_every = 3
[[attacks]]
name = "sign-flip"
[[defenses]]
name = "fedavg"
[[defenses]]
name = "median"
"""


def cosdefense_(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, cwd=cwd, **environment(**variables))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder with spaces")
    (folder / "tiny.toml").write_text(TOML)
    return folder


def test_version_and_help(folder: Path) -> None:
    program = [sys.executable, "-m", "cosdefense", "--version"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip() == cosdefense.__version__
    shown = cosdefense_("--help", cwd=folder)
    assert shown.returncode == 0
    for command in ("demo", "run", "report", "train-attack", "list", "data"):
        assert command in shown.stdout
    assert "Exit codes" in shown.stdout
    taught = cosdefense_("run", "--help", cwd=folder).stdout
    for words in ("--set", "An experiment as TOML", "Example: cosdefense run"):
        assert words in taught


@pytest.mark.slow
def test_run_then_run_again_then_report(folder: Path) -> None:
    first = cosdefense_("run", "tiny.toml", cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "final accuracy" in first.stdout
    assert "median" in first.stdout
    assert "\x1b[" not in first.stdout + first.stderr  # colour only on a terminal
    assert "fedavg: round 6 of 6, accuracy" in first.stderr
    again = cosdefense_("run", "tiny.toml", cwd=folder)
    assert again.stdout == first.stdout
    assert again.stderr.count("finished earlier") == 2
    reported = called("report", "runs/tiny", cwd=folder)
    assert reported.returncode == 0, reported.stderr
    assert (folder / "runs" / "tiny" / "report.html").stat().st_size > 100_000
    assert (folder / "runs" / "tiny" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_json_for_machines(folder: Path) -> None:
    done = called("run", "tiny.toml", "--set", "training.rounds=2", "--json", cwd=folder)
    runs = json.loads(done.stdout)["runs"]
    assert [run["defense"] for run in runs] == ["fedavg", "median"]
    assert 0 <= runs[0]["summary"]["final_accuracy"] <= 1


@pytest.mark.parametrize("kind", ["defenses", "filters", "aggregators", "attacks", "datasets", "models", "partitions"])
def test_list(folder: Path, kind: str) -> None:
    entries = json.loads(called("list", kind, "--json", cwd=folder).stdout)[kind]
    assert len(entries) >= 3
    assert all(entry["what"] for entry in entries)


@pytest.mark.slow
def test_list_shows_options(folder: Path) -> None:
    shown = cosdefense_("list", cwd=folder).stdout
    assert "contamination = 0.3" in shown
    assert "inner-product" in shown
    assert "path (required): " in shown
    assert "sha256 = None: " in shown
    assert "resnet18" in shown


def test_data_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSDEFENSE_DATA", str(folder))
    found = json.loads(called("data", "where", "--json", cwd=folder).stdout)
    assert set(found) == {"digits", "mnist", "fashion-mnist", "cifar-10"}
    assert found["digits"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("run", "none.toml"), 2, "none.toml cannot be read"),
        (("run", "tiny.toml", "--set", "training.rouns=3"), 2, "did you mean 'rounds'?"),
        (("run", "tiny.toml", "--set", "training.rounds=0"), 2, "rounds must be at least 1, got 0"),
        (("run", "tiny.toml", "--device", "gpu"), 2, "device must be auto, cpu or cuda, got 'gpu'"),
        (("run", "tiny.toml", "--set", 'model={name="paper-cnn"}'), 2, "paper-cnn needs 28×28 images"),
        (("run", "tiny.toml", "--device", "meta"), 2, "device must be auto, cpu or cuda, got 'meta'"),
        (("run", "tiny.toml", "--set", "training.lr=inf"), 2, "training.lr must be a finite number, got inf"),
        (("run", "tiny.toml", "--set", 'defenses=[{name="cosdefense", layer="x"}]'), 2, "layer must be one of"),
        (("run", "tiny.toml", "--out", "tiny.toml"), 2, "tiny.toml"),
        (("report", "nowhere"), 2, "nowhere holds no run"),
        (("report", "tiny.toml"), 1, "has no header line"),
        (("list", "everything"), 2, "everything"),
        (("data", "fetch", "imagenet"), 2, "dataset 'imagenet' is unknown"),
        (("fly",), 2, "No such command"),
    ],
)
def test_a_mistake_is_one_line_not_a_traceback(
    folder: Path, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    done = called(*arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert complaint in done.stderr


@pytest.mark.slow
def test_a_mistake_ends_the_process_with_its_exit_code(folder: Path) -> None:
    done = cosdefense_("run", "none.toml", cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_labels_and_paths_with_brackets(folder: Path) -> None:
    """They are a user's text, not markup."""
    label = 'defenses=[{name="median", label="Median [paper] a[/b]"}]'
    done = cosdefense_(
        "run", "tiny.toml", "--set", "training.rounds=1", "--set", label, "--out", "br[/old]", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "Median [paper] a[/b]" in done.stdout
    assert "br[/old]" in done.stderr


@pytest.mark.slow
def test_report_of_one_file_and_of_an_unfinished_run(folder: Path) -> None:
    called("run", "tiny.toml", "--set", "training.rounds=3", "--set", "name=part", cwd=folder)
    records = sorted((folder / "runs" / "part").rglob("records.jsonl"))[0]
    lines = records.read_text().splitlines(keepends=True)[:-1]  # as if it were still running
    for name in ("sign-flip", "mean"):  # a report shows the names of parts, it never builds them
        assert f'"name":"{name}"' in lines[0]
        lines[0] = lines[0].replace(f'"name":"{name}"', '"name":"os:abort"')
    records.write_text("".join(lines))
    done = called("report", str(records), "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["page"]) == records.parent / "report.html"


@pytest.mark.slow
def test_the_records_say_where_they_come_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSDEFENSE_COMMIT", "0123456789ab with changes")
    settings = ["--set", "training.rounds=1", "--set", "name=its-origin"]
    done = called("run", "tiny.toml", *settings, cwd=folder)
    assert done.returncode == 0, done.stderr
    headers = [
        json.loads(path.read_text().splitlines()[0]) for path in (folder / "runs" / "its-origin").rglob("*.jsonl")
    ]
    assert len(headers) == 2
    for header in headers:
        assert header["command"] == "cosdefense run tiny.toml --set training.rounds=1 --set name=its-origin"
        assert header["commit"] == "0123456789ab with changes"


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "time limit"])
def test_ctrl_c_and_a_time_limit_leave_a_resumable_run_and_say_so(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "tiny.toml").write_text(TINY + '[[defenses]]\nname = "held:mean"\n')
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "hold").touch()
    command = [sys.executable, "-m", "cosdefense", "run", "tiny.toml"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment())
    held(tmp_path, 1)
    process.send_signal(ending)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted; every run is saved" in said
    assert "Traceback" not in said
    (records,) = (tmp_path / "runs").rglob("records.jsonl")
    assert (records.parent / "checkpoint.safetensors").exists()
    assert len(records.read_bytes().splitlines()) == 1 + 5
    (tmp_path / "hold").unlink()
    done = called("run", "tiny.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(records.read_bytes().splitlines()) == 1 + 8 + 2  # one says that the run was resumed
