"""A killed server resumes to the same bits. A checkpoint that does not fit is refused and left untouched."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import LocalGrid, honest, model, record, to_arrays
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam, FedAvg, Strategy
from strategies import EVERY_STRATEGY, NODES, STRATEGIES

from cosdefense import Defense, Filter
from cosdefense.aggregators import Mean, Median
from cosdefense.filters import RFFL, Clip, FoolsGold, Krum, MultiKrum
from cosdefense.flower import Defended
from cosdefense.report import write_report
from cosdefense.runs.checkpoint import DamagedCheckpoint, read_checkpoint, write_checkpoint
from cosdefense.runs.records import DamagedRecords, RoundRecord, read_run
from cosdefense.runs.repair import repair
from cosdefense.runs.run_folder import RunFolder
from cosdefense.runs.run_lock import RunInUse
from cosdefense.runs.verify import verify

ROUNDS = 4
ACCEPT_ALL = Clip(1e9)
PAIRS: dict[str, Filter] = {"FedAdam": FoolsGold(), "FedAvgM": RFFL(warm_up=1), "DP, adaptive": FoolsGold()}
Step = Callable[[], None]


def defended(strategy: str, folder: Path, defense: Filter | Defense | None = None) -> Defended:
    return Defended(STRATEGIES[strategy](), defense or PAIRS[strategy], checkpoint_dir=folder, seed=8)


def accuracy(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": float(np.abs(to_arrays(arrays)["head.weight"]).mean())})


def run(strategy: str, folder: Path, rounds: int = ROUNDS, grid: LocalGrid | None = None) -> str:
    """Start or resume, and run to the end. Returns the digest of the model and all metrics."""
    result = defended(strategy, folder).start(
        grid or LocalGrid(honest), record(model()), num_rounds=rounds, evaluate_fn=accuracy, resume=True
    )
    hashed = hashlib.sha256(b"".join(array.data for array in result.arrays.values()))
    for history in (
        result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp,
    ):  # fmt: skip
        hashed.update(repr([(number, sorted(metrics.items())) for number, metrics in history.items()]).encode())
    return hashed.hexdigest()


class CountingGrid(LocalGrid):
    """Calls `step` before each pull."""

    def __init__(self, step: Step) -> None:
        super().__init__(honest)
        self._step = step

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._step()
        return super().pull_messages(message_ids)


def run_and_kill(strategy: str, folder: Path, at_step: int | None) -> bool:
    """Run in a child process that gets SIGKILL at its n-th step: a pull, an fsync or a rename. Was it killed?"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: none of them holds a lock here
        child = os.fork()
    if child == 0:
        try:
            steps = 0

            def step() -> None:
                nonlocal steps
                steps += 1
                if steps == at_step:
                    os.kill(os.getpid(), signal.SIGKILL)

            def count(call: Callable[..., Any]) -> Callable[..., Any]:
                def counted(*arguments: Any) -> Any:
                    step()
                    return call(*arguments)

                return counted

            os.fsync, os.replace = count(os.fsync), count(os.replace)
            (folder.parent / f"{folder.name}.digest").write_text(run(strategy, folder, grid=CountingGrid(step)))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def without_seconds(folder: Path) -> list[RoundRecord]:
    return [replace(r, seconds={}) for r in read_run(folder).rounds]


STEPS_PER_ROUND = (
    8 + 8 + 4
)  # 8 nodes train, 8 evaluate; fsync of the records, fsync and rename of the checkpoint, fsync


@pytest.mark.slow
@pytest.mark.parametrize("strategy", PAIRS)
def test_a_server_killed_at_random_steps_ends_with_the_same_model(strategy: str, tmp_path: Path) -> None:
    expected = run(strategy, tmp_path / "whole")
    generator, kills = random.Random(f"{strategy} 1"), 0
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        for _ in range(2):
            kills += run_and_kill(strategy, folder, at_step=generator.randint(2, 2 * STEPS_PER_ROUND))
        assert not run_and_kill(strategy, folder, at_step=None)
        assert (tmp_path / f"{attempt}.digest").read_text() == expected
        assert not verify(folder).faults
        assert without_seconds(folder) == without_seconds(tmp_path / "whole")
    assert kills >= 10


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["FedAdam"])
def test_a_server_killed_while_it_writes_ends_with_the_same_model(strategy: str, tmp_path: Path) -> None:
    """At each of the steps that write a round, and at the last step before them."""
    expected = run(strategy, tmp_path / "whole")
    start = 3 + STEPS_PER_ROUND  # three steps for the header, and the first round
    for step in range(start + 15, start + STEPS_PER_ROUND + 1):
        folder = tmp_path / str(step)
        assert run_and_kill(strategy, folder, at_step=step)
        assert [r.round for r in read_run(folder).rounds][:1] == [0]
        assert not run_and_kill(strategy, folder, at_step=None)
        assert (tmp_path / f"{step}.digest").read_text() == expected
        assert not verify(folder).faults
        assert [r.round for r in read_run(folder).rounds] == list(range(ROUNDS))


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_every_strategy_resumes_to_the_same_bits(strategy: str, tmp_path: Path) -> None:
    results = []
    for stops in ((3,), (1, 2, 3)):
        folder = tmp_path / str(len(stops))
        for rounds in stops:
            result = defended(strategy, folder, RFFL(warm_up=1)).start(
                LocalGrid(honest), record(model()), num_rounds=rounds, resume=True
            )
        assert [metrics["cosdefense-skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 0, 0]
        results.append((b"".join(array.data for array in result.arrays.values()), result.train_metrics_clientapp))
    assert results[0] == results[1]


def test_an_incomplete_line_and_a_partial_file_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    expected = run("FedAdam", tmp_path / "whole")
    run("FedAdam", folder, rounds=2)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"round":2,"clients":[1,2')
    (folder / ".checkpoint.safetensors.partial").write_bytes(b"half")
    assert run("FedAdam", folder) == expected
    assert without_seconds(folder) == without_seconds(tmp_path / "whole")


def test_resuming_a_finished_run_sends_no_messages(tmp_path: Path) -> None:
    first = run("FedAvgM", tmp_path)
    grid = LocalGrid(honest)
    assert run("FedAvgM", tmp_path, grid=grid) == first
    assert grid.pulls == 0


def test_two_servers_cannot_write_one_folder(tmp_path: Path) -> None:
    """The second gets RunInUse and changes nothing; when the first has stopped, it can resume."""
    run("FedAdam", tmp_path, rounds=2)
    with RunFolder(tmp_path).lock():
        message = rf"is being written by process {os.getpid()} on"
        assert_refused(tmp_path, message, RunInUse, defended("FedAdam", tmp_path))
    refused: list[RunInUse] = []

    def resume_meanwhile(message: Message) -> Message:
        try:
            defended("FedAdam", tmp_path).start(LocalGrid(honest), record(model()), num_rounds=ROUNDS, resume=True)
        except RunInUse as error:
            refused.append(error)
        return honest(message)

    run("FedAdam", tmp_path, rounds=3, grid=LocalGrid(resume_meanwhile))
    assert len(refused) == 16  # once per message: eight nodes train and evaluate
    assert len(read_run(tmp_path).rounds) == 3


@pytest.mark.slow
def test_a_report_is_drawn_from_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    run("FedAvgM", tmp_path / "run")
    written = read_run(tmp_path / "run")
    assert written.label == "RFFL"
    assert all(r.accuracy is not None for r in written.rounds)
    write_report([written], tmp_path / "report", "a federation")
    assert "RFFL" in (tmp_path / "report" / "report.html").read_text()


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_refused(
    folder: Path,
    message: str,
    kind: type[Exception] | tuple[type[Exception], ...],
    tried: Defended,
    arrays: Any = None,
    **options: Any,
) -> None:
    """With a clear error; the folder and the strategy stay as they were."""
    before, strategy, state = read_files(folder), dict(vars(tried.strategy)), tried.state
    grid = LocalGrid(honest)
    with pytest.raises(kind, match=message):
        tried.start(grid, record(arrays or model()), num_rounds=ROUNDS, **{"resume": True, **options})
    assert read_files(folder) == before
    assert vars(tried.strategy) == strategy
    assert tried.state is state
    assert grid.pulls == 0


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("FedAdam", folder, rounds=2)
    wider = {name: array.astype(np.float64) if name == "head.bias" else array for name, array in model().items()}
    smaller = {name: array for name, array in model().items() if name != "head.bias"}
    reordered = dict(reversed(model().items()))

    def good() -> Defended:
        return defended("FedAdam", folder)

    assert_refused(folder, "holds a checkpoint.*resume=True", ValueError, good(), resume=False)
    assert_refused(
        folder, r"another model: its 'head.bias' is .*float32.*this model has .*float64", ValueError, good(), wider
    )
    assert_refused(folder, r"another model: its 'head.bias' is .*this model has None", ValueError, good(), smaller)
    assert_refused(folder, "another model: its arrays are in the order", ValueError, good(), reordered)
    other = defended("FedAdam", folder, Clip(3.0))
    assert_refused(folder, r"another defense: .*FoolsGold.*this is .*Clip", ValueError, other)
    other = defended("FedAvgM", folder, FoolsGold())
    assert_refused(folder, "another strategy: FedAdam, this is FedAvgM", ValueError, other)
    other = defended("FedAdam", folder, Defense((FoolsGold(),), Mean()))
    assert_refused(folder, "another aggregation: by the strategy, this is by the defense", ValueError, other)
    assert run("FedAdam", folder) == run("FedAdam", tmp_path / "whole")  # it can still be resumed


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """Truncated anywhere, or with any one bit changed."""
    whole = tmp_path / "whole"
    run("FedAdam", whole, rounds=2)
    content = (whole / "checkpoint.safetensors").read_bytes()
    generator = random.Random(5)
    cuts = [content[: generator.randrange(len(content))] for _ in range(20)] + [b""]
    flips = []
    for _ in range(60):
        place = generator.randrange(len(content))
        flips.append(content[:place] + bytes([content[place] ^ (1 << generator.randrange(8))]) + content[place + 1 :])
    for damaged in cuts + flips:
        (whole / "checkpoint.safetensors").write_bytes(damaged)
        assert_refused(whole, "checkpoint.safetensors", DamagedCheckpoint, defended("FedAdam", whole))


def test_damaged_records_are_refused_until_they_are_repaired(tmp_path: Path) -> None:
    """Then the run ends with the same model, and the records say which round is lost."""
    folder = tmp_path / "run"
    run("FedAdam", folder, rounds=3)
    records = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(records[:2] + records[3:]))
    damaged = (folder / "records.jsonl").read_bytes()
    removed = "needs rounds 0 to 2.*line 3: what was before it was removed.*cosdefense repair"
    assert_refused(folder, removed, DamagedRecords, defended("FedAdam", folder))
    repaired = repair(RunFolder(folder))
    assert repaired is not None
    assert repaired.lost == (1,)
    assert [path.read_bytes() for path in repaired.copies] == [damaged]
    assert run("FedAdam", folder) == run("FedAdam", tmp_path / "whole")
    whole = without_seconds(tmp_path / "whole")
    assert without_seconds(folder) == [*whole[:1], RoundRecord(1, (), (), lost=True), *whole[2:]]
    assert not verify(folder).faults


@pytest.mark.parametrize("resume", [True, False])
def test_records_without_a_checkpoint_are_not_overwritten(tmp_path: Path, resume: bool) -> None:
    run("FedAdam", tmp_path, rounds=3)
    (tmp_path / "checkpoint.safetensors").unlink()
    assert_refused(tmp_path, "3 rounds.*is missing", ValueError, defended("FedAdam", tmp_path), resume=resume)


def resume_with(strategy: Strategy, folder: Path, rounds: int, **options: Any) -> Defended:
    tried = Defended(strategy, FoolsGold(), checkpoint_dir=folder, **{"seed": 8, **options})
    tried.start(LocalGrid(honest), record(model()), num_rounds=rounds, resume=True)
    return tried


def find_changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says about settings that differ from those of the run that was resumed."""
    entries = [entry.getMessage().partition("is resumed: ") for entry in caplog.records]
    changes = [change for _, found, change in entries if found]
    caplog.clear()
    return changes


def test_the_settings_of_the_operator_win_over_those_of_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what the strategy itself has changed comes from the checkpoint; changed settings are logged once."""
    resume_with(FedAdam(**NODES, eta=0.1), tmp_path, 2)
    twin = resume_with(FedAdam(**NODES, eta=0.1), tmp_path, 2).strategy
    assert find_changes(caplog) == []
    fewer = {**NODES, "min_available_nodes": 4}
    adam = resume_with(FedAdam(**fewer, eta=0.02), tmp_path, 2).strategy
    assert isinstance(adam, FedAdam)
    assert isinstance(twin, FedAdam)
    assert (adam.min_available_nodes, adam.eta) == (4, 0.02)
    assert adam.m_t is not None
    assert twin.m_t is not None
    assert adam.m_t.keys() == twin.m_t.keys()
    assert all(np.array_equal(adam.m_t[name], twin.m_t[name]) for name in twin.m_t)
    assert find_changes(caplog) == [
        "min_available_nodes is now 4, it was 8 before",
        "eta is now 0.02, it was 0.1 before",
    ]
    assert resume_with(FedAdam(**fewer, eta=0.02), tmp_path, 3).strategy.min_available_nodes == 4  # type: ignore[attr-defined]
    find_changes(caplog)
    resume_with(FedAdam(**fewer, eta=0.02), tmp_path, 4)
    assert find_changes(caplog) == []  # the last run had these settings too


def test_the_settings_of_wrapped_strategies_win_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The adaptive clipping norm is a state, unless the operator chooses another initial value."""

    def build(norm: float, quantile: float, **options: Any) -> Strategy:
        inner = FedAvg(**{**NODES, **options})
        return DifferentialPrivacyServerSideAdaptiveClipping(
            inner, 0.5, 8, initial_clipping_norm=norm, target_clipped_quantile=quantile
        )

    first: Any = resume_with(build(0.1, 0.5), tmp_path, 2).strategy
    assert first.clipping_norm != 0.1
    again: Any = resume_with(build(0.1, 0.6, min_available_nodes=3), tmp_path, 2).strategy
    assert again.clipping_norm == first.clipping_norm
    assert (again.target_clipped_quantile, again.strategy.min_available_nodes) == (0.6, 3)
    assert find_changes(caplog) == [
        "strategy.min_available_nodes is now 3, it was 8 before",
        "target_clipped_quantile is now 0.6, it was 0.5 before",
    ]
    other: Any = resume_with(build(0.2, 0.5), tmp_path, 2).strategy
    assert other.clipping_norm == 0.2
    assert find_changes(caplog) == [
        "clipping_norm is now 0.2, it was 0.1 before, and the state that grew from it starts again"
    ]


def test_the_seed_of_the_operator_wins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resume_with(FedAvg(**NODES), tmp_path, 1)
    assert resume_with(FedAvg(**NODES), tmp_path, 1, seed=None).seed == 8
    assert find_changes(caplog) == []
    assert resume_with(FedAvg(**NODES), tmp_path, 1, seed=9).seed == 9
    assert find_changes(caplog) == ["the seed, so other nodes are sampled"]


def test_an_interrupted_round_does_not_change_what_is_resumed(tmp_path: Path) -> None:
    """The same object resumes: its momenta are those of a round that was never saved."""

    def stop(number: int, arrays: ArrayRecord) -> None:
        if number == 3:
            raise KeyboardInterrupt

    tried = Defended(FedAdam(**NODES), FoolsGold(), checkpoint_dir=tmp_path / "stopped", seed=8)
    with pytest.raises(KeyboardInterrupt):
        tried.start(LocalGrid(honest), record(model()), num_rounds=4, evaluate_fn=stop)
    result = tried.start(LocalGrid(honest), record(model()), num_rounds=4, resume=True)
    whole = Defended(FedAdam(**NODES), FoolsGold(), checkpoint_dir=tmp_path / "whole", seed=8)
    expected = whole.start(LocalGrid(honest), record(model()), num_rounds=4)
    assert [a.data for a in result.arrays.values()] == [a.data for a in expected.arrays.values()]


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "rounds"
    run("FedAdam", folder, rounds=2)
    return folder


def change_checkpoint(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], int | None]) -> None:
    """Write a checkpoint with a valid digest that no run would write."""
    path = folder / "checkpoint.safetensors"
    before = read_checkpoint(path)
    metadata, tensors = json.loads(json.dumps(before.metadata)), dict(before.tensors)
    n_rounds = change(metadata, tensors)
    n_rounds = before.next_round if n_rounds is None else n_rounds
    write_checkpoint(path, replace(before, next_round=n_rounds, tensors=tensors, metadata=metadata))


def replace_model(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["model.head.weight"] = tensors["model.head.weight"] * float("nan")


def add_history(entry: list[Any]) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda metadata, _: metadata["metrics"]["train_metrics_clientapp"].append(entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda *_: 10**9, "next_round must be a whole number from 0 to 10,000,000, got 1000000000"),
        (lambda *_: -1, "next_round must be a whole number from 0 to 10,000,000, got -1"),
        (lambda *_: 3, r"needs rounds 0 to 2 .*: got 2 of them"),
        (replace_model, "a model whose 'head.weight' is not finite"),
        (add_history([10**9, {"loss": 1.0}]), r"train_metrics_clientapp holds round 1000000000, after 2 rounds"),
        (add_history([1, {"loss": 1.0}]), "train_metrics_clientapp holds round 1, after 2 rounds"),  # twice
        (add_history([0, {"loss": [0.0] * 10**6}]), "the metrics are more than 1000000 numbers"),
        (add_history([0, {"loss": "low"}]), "train_metrics_clientapp holds .*low.*, not a round and its metrics"),
        (add_history([0]), "train_metrics_clientapp holds .*0.*, not a round and its metrics"),
        (lambda metadata, _: metadata.__delitem__("seed"), "does not hold the state of a federation: KeyError: .*seed"),
        (lambda metadata, _: metadata["strategy"].update({"__class__": 1}), "holds '__class__', which no strategy has"),
        (lambda metadata, _: metadata["strategy"].update({"a.b": 1}), "holds 'a.b', which no strategy has"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_no_run_has_written_is_refused(
    two_rounds: Path, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], int | None], message: str
) -> None:
    """Its digest is right, as in a file that somebody has forged."""
    folder = shutil.copytree(two_rounds, tmp_path / "forged")
    change_checkpoint(folder, change)
    assert_refused(folder, message, (DamagedCheckpoint, DamagedRecords, ValueError), defended("FedAdam", folder))


@pytest.mark.slow
def test_metrics_that_are_too_many_for_a_checkpoint_are_left_out(tmp_path: Path) -> None:
    """Otherwise the file could be written and not be read."""
    many = MetricRecord({"all": [0.5] * 300_000})
    for rounds in (4, 5):
        tried = defended("FedAvg", tmp_path, ACCEPT_ALL)
        result = tried.start(
            LocalGrid(honest), record(model()), num_rounds=rounds, evaluate_fn=lambda *_: many, resume=True
        )
    assert list(result.evaluate_metrics_serverapp) == [2, 3, 4, 5]


def test_attributes_that_cannot_be_saved_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tried = defended("FedAdam", tmp_path)
    tried.strategy.generator = np.random.default_rng(1)  # type: ignore[attr-defined]
    tried.start(LocalGrid(honest), record(model()), num_rounds=3)
    lines = [entry.getMessage() for entry in caplog.records if "not in the checkpoint" in entry.getMessage()]
    assert lines == ["not in the checkpoint, a resumed run starts without its state: FedAdam.generator, a Generator"]


def test_a_record_with_reasons_can_be_read_back() -> None:
    line = RoundRecord(0, (1, 2**64 - 1), (1.0, 0.0), reasons=(None, "late"))
    assert RoundRecord.from_json(line.to_json()) == line


def test_a_finished_run_has_a_summary_until_it_is_continued(tmp_path: Path) -> None:
    """The summary is the last line. After rounds that are requested later, a new one counts."""
    run("FedAdam", tmp_path, rounds=2)
    first = read_run(tmp_path)
    assert first.summary is not None
    assert first.summary["final_accuracy"] == first.rounds[-1].accuracy
    run("FedAdam", tmp_path, rounds=3)
    again = read_run(tmp_path)
    assert again.summary is not None
    assert again.summary["final_accuracy"] == again.rounds[-1].accuracy
    assert [line.round for line in again.rounds] == [0, 1, 2]
    kinds = [line.kind for line in RunFolder(tmp_path).read_lines()]
    assert kinds == ["experiment", "round", "round", "summary", "resumed", "round", "summary"]


@pytest.mark.parametrize(
    ("defense", "label"),
    [
        (MultiKrum(), "multi-krum"),
        (Krum(0.2), "Krum"),
        (Defense((Clip(2.0),), Median()), "clipping-median"),
        (Defense((Clip(3.0),), Median()), "Clip + Median"),
        (Defense((), Mean()), "no filter + Mean"),
    ],
)
def test_the_header_names_the_defense(tmp_path: Path, defense: Filter | Defense, label: str) -> None:
    """By its preset, or by its parts. With a filter alone, the strategy is the aggregator."""
    defended("FedAvg", tmp_path, defense).start(LocalGrid(honest), record(model()), num_rounds=1)
    written = read_run(tmp_path)
    assert written.label == label
    (parts,) = written.header["experiment"]["defenses"]
    assert ("aggregator" in parts) == isinstance(defense, Defense)
