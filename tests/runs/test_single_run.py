"""A run is recorded, can be killed at any moment, and resumes to the same bits."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from commands import called
from cosdefense import ClientTable
from cosdefense.catalog.options import ConfigError
from cosdefense.data import load as load_data
from cosdefense.runs.checkpoint import (
    DamagedCheckpoint,
    checkpoint_of,
    read_checkpoint,
    snapshot_of,
    write_checkpoint,
)
from cosdefense.runs.device import choose_device
from cosdefense.runs.experiment import Experiment, to_table
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.files import write_atomically
from cosdefense.runs.prepare import NeverReached, build_world, dry_run
from cosdefense.runs.records import DamagedRecords, RoundRecord, read_run
from cosdefense.runs.run_folder import ResumedElsewhere, is_finished
from cosdefense.runs.run_lock import RunInUse
from cosdefense.runs.single_run import run
from cosdefense.runs.verify import verify
from cosdefense.simulation.loop import Snapshot
from interrupted_runs import rounds_run

CPU = torch.device("cpu")
FILES = {"experiment.toml", "records.jsonl", "checkpoint.safetensors", "lock"}
TABLE = {
    "name": "small",
    "data": {"dataset": "digits", "clients": 20},
    "model": {"name": "mlp", "hidden": 16},
    "training": {"rounds": 12, "sampled": 5, "batch": 4, "lr": 0.1, "evaluate_every": 5},
    "schedule": {"attack_start": 3, "defense_start": 3},
    "attacks": [{"name": "noise", "scale": 0.1}],
    "defenses": [{"name": "cosdefense"}],
}


def cell(**training: int) -> Experiment:
    return from_table({**TABLE, "training": {**TABLE["training"], **training}})  # type: ignore[dict-item]


def go(folder: Path, experiment: Experiment | None = None, *, stop_after: int | None = None) -> list[int]:
    """The numbers of the rounds that were run."""
    return rounds_run(experiment or cell(), folder, load_data("digits"), stop_after=stop_after, checkpoint_seconds=0.0)


def bits(folder: Path) -> tuple[list[dict[str, object]], bytes]:
    """Everything a run decided: records without times, and the final parameters."""
    rounds = [record.to_json() for record in read_run(folder).rounds]
    decided = [{k: v for k, v in line.items() if k not in ("seconds", "peak_memory")} for line in rounds]
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        return decided, file.get_tensor("params").numpy().tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert go(folder) == list(range(12))
    return folder


def test_what_lies_on_disk(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == FILES
    record = read_run(whole)
    assert record.header["experiment"]["training"]["rounds"] == 12
    assert record.header["seed"] == 0
    assert record.header["versions"]["torch"] == torch.__version__
    assert len(record.header["split"]) == 20
    assert sum(map(sum, record.header["split"])) == 1437
    assert len(record.header["malicious_clients"]) == 6
    assert [r.round for r in record.rounds] == list(range(12))
    # Every fifth, the last one before the attack, and the last of all.
    assert [r.round for r in record.rounds if r.accuracy is not None] == [2, 4, 9, 11]
    assert [r.defended for r in record.rounds] == [False] * 3 + [True] * 9
    assert record.summary is not None
    assert record.summary["final_accuracy"] == record.rounds[-1].accuracy
    assert set(record.summary["seconds"]) == {"train", "attack", "defend", "evaluate"}


def test_a_finished_run_is_not_run_again(whole: Path) -> None:
    assert is_finished(whole)
    before = (whole / "records.jsonl").read_bytes()
    assert go(whole) == []
    assert (whole / "records.jsonl").read_bytes() == before


def test_the_same_command_gives_the_same_bits(whole: Path, tmp_path: Path) -> None:
    go(tmp_path)
    assert bits(tmp_path) == bits(whole)


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_stopped_and_resumed(whole: Path, tmp_path: Path, stop: int) -> None:
    """As Ctrl-C does it."""
    go(tmp_path, stop_after=stop)
    assert not is_finished(tmp_path)
    assert go(tmp_path) == list(range(stop, 12))
    assert bits(tmp_path) == bits(whole)


def test_records_beyond_the_checkpoint_are_run_again(whole: Path, tmp_path: Path) -> None:
    """A crash between two checkpoints leaves more lines than the checkpoint knows, the last one torn."""
    go(tmp_path, stop_after=4)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"round":4,"clients":[1],"weights":[9.0]}\n{"round":5,"cli')
    go(tmp_path)
    assert bits(tmp_path) == bits(whole)
    assert not verify(tmp_path).faults


def run_and_die(experiment: Experiment, folder: Path, fatal_round: int, delay: float) -> bool:
    """Run in another process that gets SIGKILL soon after this round; whether that came before the end."""

    def die_soon(record: RoundRecord) -> None:  # somewhere inside a round or a write
        if record.round == fatal_round:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: none of them holds a lock here
        child = os.fork()
    if child == 0:
        try:
            run(experiment, folder, load_data("digits"), CPU, checkpoint_seconds=0.0, on_round=die_soon)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
def test_kill_minus_nine_at_random_moments(tmp_path: Path) -> None:
    """Killed three times in mid-flight, by the hardest signal, and still the same bits in the end."""
    experiment, killed, straight = cell(rounds=20), tmp_path / "killed", tmp_path / "straight"
    for fatal_round, delay in ((3, 0.0), (8, 0.004), (13, 0.009)):
        assert run_and_die(experiment, killed, fatal_round, delay)
        assert not is_finished(killed)
    assert not run_and_die(experiment, killed, -1, 0.0)
    go(straight, experiment)
    assert is_finished(killed)
    assert bits(killed) == bits(straight)
    assert not verify(killed).faults


@pytest.mark.slow
def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    def second(record: RoundRecord) -> None:
        with pytest.raises(RunInUse, match=r"is being written by process \d+ on"):
            go(tmp_path)

    run(cell(rounds=1), tmp_path, load_data("digits"), CPU, on_round=second)


def test_resuming_elsewhere_is_a_warning(tmp_path: Path) -> None:
    earlier = {"versions": {"torch": "1.0"}}
    rounds_run(cell(), tmp_path, load_data("digits"), stop_after=1, notes=earlier)
    with pytest.warns(ResumedElsewhere, match="began with versions .*1.0.* and is resumed with"):
        go(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    go(tmp_path, stop_after=1)
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(DamagedCheckpoint, match=r"cannot be read .* to start this run again"):
        go(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {"params": torch.zeros(3)}}, r"holds another model: needs \[1210\] torch.float32, got \[3\]"),
        ({"tensors": {}}, "does not hold the state of this simulation"),
        ({"metadata": {}}, "does not hold the state of this simulation"),
        ({"metadata": {"states": 3}}, "does not hold the state of this simulation"),
        ({"metadata": {"states": [{"items": 3}, None]}}, "does not hold the state of this simulation"),
        ({"metadata": {"states": [{"tensor": [1]}, None]}}, "does not hold the state of this simulation"),
    ],
    ids=str,
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    go(tmp_path, stop_after=1)
    checkpoint = tmp_path / "checkpoint.safetensors"
    write_checkpoint(checkpoint, replace(read_checkpoint(checkpoint), **change))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DamagedCheckpoint, match=message):
        go(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damaged_records_are_named_and_repaired(whole: Path, tmp_path: Path) -> None:
    go(tmp_path, stop_after=3)
    records = tmp_path / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(DamagedRecords, match=r"needs rounds 0 to 2 .*: got 1 of them"):
        go(tmp_path)
    assert called("repair", ".", cwd=tmp_path).stdout.startswith(".: 1 rounds kept, 2 lost; lost: 1, 2\n")
    assert go(tmp_path) == list(range(3, 12))
    rounds, params = bits(whole)
    lost = [RoundRecord(number, (), (), lost=True).to_json() for number in (1, 2)]
    assert bits(tmp_path) == ([*rounds[:1], *lost, *rounds[3:]], params)
    assert not verify(tmp_path).faults


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def fails(source: str, destination: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="the disk is full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    (partial,) = set(tmp_path.iterdir()) - {target}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (partial, target)} == {0o600}
    monkeypatch.undo()
    write_atomically(target, b"new")  # over what the failure left behind
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_states_survive_a_checkpoint(tmp_path: Path) -> None:
    table = ClientTable.empty().with_rows(torch.tensor([2**62, 5]), torch.tensor([[1.0], [2.0]]))
    write_checkpoint(tmp_path / "c", checkpoint_of(Snapshot(7, torch.arange(3.0), (table, None), 4)))
    result = snapshot_of(read_checkpoint(tmp_path / "c"), ((ClientTable.empty(), None), None, ()))
    assert result.next_round == 7
    assert result.attack_state == 4
    assert result.defense_state[0].clients.tolist() == [5, 2**62]
    assert result.params.tolist() == [0, 1, 2]


def test_the_seed_decides_the_world() -> None:
    data = load_data("digits")
    one, again = build_world(cell(), data, CPU), build_world(cell(), data, CPU)
    other = build_world(from_table({**TABLE, "seeds": [1]}), data, CPU)
    assert torch.equal(one.task.initial(), again.task.initial())
    assert torch.equal(one.malicious, again.malicious)
    assert not torch.equal(one.task.initial(), other.task.initial())
    assert not torch.equal(one.malicious, other.malicious)
    assert int(one.malicious.sum()) == 6


def test_mistakes_that_only_data_reveals() -> None:
    data = load_data("digits")
    with pytest.raises(ConfigError, match="model does not fit dataset digits: paper-cnn needs 28×28 images, got 8×8"):
        build_world(from_table({**TABLE, "model": {"name": "paper-cnn"}}), data, CPU)
    small = {"dataset": "digits", "clients": 7, "partition": {"name": "label-skew"}}
    with pytest.raises(
        ConfigError, match=r"data.partition: label skew needs at least one client per class \(10\), got 7"
    ):
        build_world(from_table({**TABLE, "data": small}), data, CPU)
    for name in ("tpu-42", "meta", "mps"):
        with pytest.raises(ConfigError, match=f"device must be auto, cpu or cuda, got '{name}'"):
            choose_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch finds 0 CUDA GPUs here"):
            choose_device("cuda")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"attacks": [{"name": "label-flip", "source": 1, "target": 70}]}, "needs classes below 10, got 1 and 70"),
        ({"defenses": [{"name": "cosdefense", "layer": "nope"}]}, "layer must be one of .*, got 'nope'"),
        ({"defenses": [{"name": "fedavg"}, {"name": "krum", "contamination": 0.4}]}, "Krum needs more than 6 clients"),
        ({"model": {"name": "paper-cnn"}}, "paper-cnn needs 28×28 images"),
    ],
)
def test_a_dry_run_finds_what_only_the_data_reveals(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        dry_run(from_table({**TABLE, **change}), load_data("digits"))


def test_a_dry_run_of_a_sound_experiment_is_silent() -> None:
    dry_run(cell(), load_data("digits"))


def test_a_schedule_that_is_never_reached_is_said() -> None:
    with pytest.warns(NeverReached, match="the attack starts after the last round"):
        dry_run(from_table({**TABLE, "schedule": {"attack_start": 12}}), load_data("digits"))
    with pytest.warns(NeverReached, match="the defense starts after the last round"):
        dry_run(from_table({**TABLE, "schedule": {"defense_start": 99}}), load_data("digits"))


def test_a_run_does_not_depend_on_the_callers_settings_and_leaves_them_alone(tmp_path: Path) -> None:
    def settings() -> tuple[bool, ...]:
        cudnn = torch.backends.cudnn
        return cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32

    inside: list[tuple[bool, ...]] = []
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        before = settings()
        for tf32 in (False, True):
            table = {**TABLE, "training": {**TABLE["training"], "rounds": 1, "tf32": tf32}}  # type: ignore[dict-item]
            run(
                from_table(table), tmp_path / str(tf32), load_data("digits"), CPU,
                on_round=lambda record: inside.append(settings()),
            )  # fmt: skip
            assert settings() == before
    finally:
        torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = False
    assert inside == [(True, False, False, False), (True, False, True, False)]


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_is_private(tmp_path: Path) -> None:
    """It holds seeds, models and judgments: only its owner may read it, unless the owner says otherwise."""
    before, new, given = os.umask(0o022), tmp_path / "new" / "run", tmp_path / "given"
    try:
        given.mkdir(mode=0o755)
        for folder, mode in ((new, 0o700), (given, 0o755)):
            go(folder, stop_after=1)
            assert get_mode(folder) == mode
            assert {path.name: oct(get_mode(path)) for path in folder.iterdir()} == dict.fromkeys(FILES, "0o600")
        (given / "records.jsonl").chmod(0o640)
        go(given, stop_after=1)
    finally:
        os.umask(before)
    assert {name: get_mode(given / name) for name in FILES} == {**dict.fromkeys(FILES, 0o600), "records.jsonl": 0o640}


def test_records_hold_no_nan(whole: Path) -> None:
    for line in (whole / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


STATEFUL = [
    {"name": "foolsgold"},
    {"name": "rffl", "warm_up": 2},
    {"name": "bygars++"},
    {"filters": [{"name": "sageflow"}], "hooks": [{"name": "fl-wbc"}, {"name": "adversarial-training", "steps": 1}]},
]


@pytest.mark.parametrize("defense", STATEFUL, ids=str)
def test_memory_and_hooks_survive_a_stop(defense: dict[str, object], tmp_path: Path) -> None:
    """Clients come and go, some samples are the server's; stopped in the middle, it ends in the same bits."""
    table = {**TABLE, "defenses": [defense], "data": {"dataset": "digits", "clients": 20, "trusted": 30, "shared": 3}}
    table["training"] = {"rounds": 12, "sampled": 5, "batch": 4, "lr": 0.1, "local_steps": 2}
    experiment, data = from_table(table), load_data("digits")
    assert from_table(to_table(experiment)) == experiment
    run(experiment, tmp_path / "whole", data, CPU)
    assert rounds_run(experiment, tmp_path / "parts", data, stop_after=7) == list(range(7))
    assert rounds_run(experiment, tmp_path / "parts", data) == list(range(7, 12))
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_clean_and_adversarial_accuracy_are_recorded(tmp_path: Path) -> None:
    def last(folder: str, defense: dict[str, object], **training: object) -> RoundRecord:
        settings = {"rounds": 2, "sampled": 5, "batch": 4, **training}
        table = {**TABLE, "defenses": [defense], "training": settings, "schedule": {}}
        run(from_table(table), tmp_path / folder, load_data("digits"), CPU)
        return read_run(tmp_path / folder).rounds[-1]

    hardened = last("fat", {"name": "fat", "steps": 2})
    assert hardened.accuracy is not None
    assert hardened.adversarial_accuracy is not None
    assert hardened.adversarial_accuracy <= hardened.accuracy
    assert last("plain", {"name": "fedavg"}).adversarial_accuracy is None
    assert last("asked", {"name": "fedavg"}, adversarial=0.1).adversarial_accuracy is not None
    summary = read_run(tmp_path / "asked").summary
    assert summary is not None
    assert summary["adversarial_accuracy"] is not None


def test_accuracy_with_batch_statistics_is_recorded_where_asked_for(tmp_path: Path) -> None:
    for asked in (False, True):
        table = {**TABLE, "training": {**TABLE["training"], "batch_statistics": asked}}  # type: ignore[dict-item]
        run(from_table(table), tmp_path / str(asked), load_data("digits"), CPU)
    plain, measured = (read_run(tmp_path / name) for name in ("False", "True"))
    assert all(record.batch_statistics_accuracy is None for record in plain.rounds)
    assert [record.batch_statistics_accuracy for record in measured.rounds] == [r.accuracy for r in measured.rounds]
    assert plain.summary is not None
    assert measured.summary is not None
    assert plain.summary["batch_statistics_accuracy"] is None
    assert measured.summary["batch_statistics_accuracy"] == measured.rounds[-1].accuracy is not None  # no BatchNorm
    assert measured.summary["batch_statistics_tail"] == measured.summary["tail_accuracy"]


def test_pictures_are_recorded(tmp_path: Path) -> None:
    table = {**TABLE, "defenses": [{"name": "pca-clustering"}]}
    run(from_table(table), tmp_path / "run", load_data("digits"), CPU)
    for record in read_run(tmp_path / "run").rounds[3:]:
        points = record.points["PCAClusters"]
        assert len(points) == len(record.clients)
        assert all(point is None or len(point) == 2 for point in points)


def test_a_dry_run_names_missing_data_and_idle_hooks() -> None:
    digits = load_data("digits")
    for name, needed in (("fltrust", r"data\.trusted"), ("diversefl", r"data\.shared")):
        with pytest.raises(ConfigError, match=f"defense {name}: .*{needed}"):
            dry_run(from_table({**TABLE, "defenses": [{"name": name}]}), digits)
    with_data = {**TABLE, "data": {"dataset": "digits", "clients": 20, "trusted": 30}}
    with pytest.raises(ConfigError, match=r"defense diversefl: .*data\.shared"):
        dry_run(from_table({**with_data, "defenses": [{"name": "diversefl"}]}), digits)
    with pytest.warns(NeverReached, match="FL-WBC acts from the second local step on"):
        dry_run(from_table({**TABLE, "defenses": [{"name": "fl-wbc"}]}), digits)
