"""cosdefense advise on data of one's own: what it recommends, prints and writes, and how it resumes."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from commands import called
from cosdefense.cli.advise import TournamentDisplay
from cosdefense.runs.experiment_file import load
from cosdefense.runs.observer import Job
from cosdefense.runs.records import RoundRecord
from cosdefense.studies.advise import candidates, tournament
from cosdefense.studies.advise.budget import Costs, measure_costs
from cosdefense.studies.advise.tournament import Deadline, TimeIsUp

EXAMPLES = Path(__file__).parents[2] / "examples" / "own-data"
ROUNDS = 6
TOML = f"""
seeds = [0]

[data]
dataset = {{ name = "sites.csv", label = "answer", client = "site" }}
malicious = 0.17  # one of six

[model]
name = "mlp"
hidden = 4

[training]
rounds = {ROUNDS}
local_steps = 2
batch = 16
lr = 0.5
"""
STRONG = '[[attacks]]\nname = "sign-flip"\nscale = 50.0\n'
HARMLESS = '[[attacks]]\nname = "sign-flip"\nscale = 0.0\n'
DEFENSES = """
[[defenses]]
label = "never clips"  # the same as plain averaging
name = "norm-clipping"
max_norm = 1e9

[[defenses]]
name = "median"
"""


class Watch(Deadline):
    """Counts rounds. After `stop_after` of them, the time is up or Ctrl-C is pressed."""

    seen: ClassVar[list[tuple[str, int]]]
    end: ClassVar[float]
    stop_after: ClassVar[int | None]
    is_interrupt: ClassVar[bool]

    def __init__(self, end: float) -> None:
        super().__init__(end)
        type(self).end = end

    def round_recorded(self, job: Job, record: RoundRecord) -> None:
        self.seen.append((job.label, record.round))
        if len(self.seen) == self.stop_after:
            if self.is_interrupt:
                raise KeyboardInterrupt
            self._end = time.monotonic() - 1
        super().round_recorded(job, record)


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> type[Watch]:
    """The same plan on every computer: fewest defenses and attacks, all rounds. No run is cut by a slow computer."""
    Watch.seen, Watch.stop_after, Watch.is_interrupt = [], None, False
    monkeypatch.setattr(tournament, "Deadline", Watch)
    monkeypatch.setattr(tournament, "measure_costs", estimate)
    return Watch


def estimate(*arguments: Any) -> Costs:
    return Costs(10.0, 10.0, 10.0, tuple(0.0 for _ in arguments[3]))


MINUTES = ("--minutes", str(1.02 * 12 * (10 + 20 * ROUNDS) / 0.9 / 60))  # for 12 runs


@pytest.fixture(scope="module")
def table() -> str:
    """180 samples of six sites that are all alike, and easy to tell apart."""
    draw, lines = random.Random(0), ["site,answer,a,b"]
    for number in range(180):
        answer = number % 2
        a, b = (draw.gauss(4.0 * answer - 2.0, 1.0) for _ in range(2))
        lines.append(f"site {number // 2 % 6},{('no', 'yes')[answer]},{a:.4f},{b:.4f}")
    return "\n".join(lines)


@pytest.fixture
def folder(tmp_path: Path, table: str) -> Path:
    (tmp_path / "sites.csv").write_text(table)
    (tmp_path / "mine.toml").write_text(TOML + STRONG)
    return tmp_path


def advise(folder: Path, *options: str, code: int = 0, file: str = "mine.toml") -> tuple[Any, str]:
    """What it says to machines, and to people."""
    done = called("advise", file, *MINUTES, "--json", *options, cwd=folder)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if done.stdout else None, done.stderr


def only(monkeypatch: pytest.MonkeyPatch, folder: Path, attack: str) -> None:
    """Only the file's own attack and defenses take part, so that the answer is known."""
    monkeypatch.setattr(candidates, "DEFENSES", ())
    monkeypatch.setattr(candidates, "ATTACKS", ())
    (folder / "mine.toml").write_text(TOML + attack + DEFENSES)


def test_the_one_defense_that_stops_the_attack_is_recommended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, folder, STRONG)
    answer, _ = advise(folder)
    assert answer["recommended"] == {"name": "median"}
    assert len(answer["why"]) == 3
    assert answer["survives"] == ["sign-flip(scale=50.0)"]
    values = {one["defense"]: one["values"] for one in answer["defenses"]}
    assert values["median"]["sign-flip(scale=50.0)"] > 0.9
    assert values["fedavg"] == values["never clips"]
    shown = called("advise", "mine.toml", *MINUTES, cwd=folder).stdout
    assert shown.startswith("Recommended: median\n")
    for words in (
        "Cost without an attack:\n  accuracy: ", "honest clients rejected: nobody", "worst-served client: site ",
        "\nSurvives: sign-flip", "\nBroken by: none of those tried",
        'strategy = Defended(FedAvg(), cosdefense.get("median"))', "\nEvery number: cosdefense run mine-advise.toml\n",
    ):  # fmt: skip
        assert words in shown


def test_it_says_that_no_defense_is_worth_its_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, folder, HARMLESS)
    answer, _ = advise(folder)
    assert answer["recommended"] is None
    assert answer["flower"] is None
    assert "no defense is worth its cost" in answer["why"][1]
    (folder / "mine.toml").rename(folder / "my file.toml")
    shown = called("advise", "my file.toml", *MINUTES, "--out", "else where", cwd=folder).stdout
    assert shown.startswith("Recommended: plain averaging (no defense is worth its cost)\n")
    assert "cosdefense run 'my file-advise.toml' --out 'else where'\n" in shown
    assert "Paste into" not in shown


def test_the_file_it_writes_reproduces_every_number(folder: Path, watch: type[Watch]) -> None:
    answer, said = advise(folder)
    assert answer["finished"] == answer["planned"] == 12
    assert len(watch.seen) == 12 * ROUNDS
    assert "12 of 12 runs" in said
    done = called("run", answer["experiment"], "--out", "elsewhere", "--json", cwd=folder)
    runs = json.loads(done.stdout)["runs"]
    reproduced = {(run["defense"], run["attack"]): run["summary"]["tail_accuracy"] for run in runs}
    assert reproduced == {
        (one["defense"], attack): value for one in answer["defenses"] for attack, value in one["values"].items()
    }
    again = called("run", answer["experiment"], "--json", cwd=folder)  # in the same folder nothing is left to do
    assert "12 runs were finished earlier" in again.stderr


def test_ctrl_c_loses_nothing(folder: Path, watch: type[Watch]) -> None:
    watch.stop_after, watch.is_interrupt = 3 * ROUNDS + 5, True
    _, said = advise(folder, code=130)
    assert "interrupted; every run is saved: the same command resumes" in said
    watch.stop_after = None
    resumed, said = advise(folder)
    assert "the plan in mine-advise.toml is used again" in said
    assert len(watch.seen) == len(set(watch.seen)) == 12 * ROUNDS
    uninterrupted, _ = advise(folder, "--out", "elsewhere")
    assert resumed == uninterrupted


def test_the_budget_ends_runs_and_the_same_command_continues(folder: Path, watch: type[Watch]) -> None:
    watch.stop_after = 7 * ROUNDS + 5  # plain averaging, one defense, and a part of the next
    start = time.monotonic()
    answer, said = advise(folder)
    assert 0 <= watch.end - start - 60 * float(MINUTES[1]) < time.monotonic() - start
    assert len(watch.seen) == watch.stop_after
    assert "the time is up" in said
    assert "7 of 12 runs were finished in the time" in said
    assert [one["defense"] for one in answer["defenses"]] == ["fedavg", "factions"]
    watch.stop_after = None
    answer, _ = advise(folder)
    assert len(answer["defenses"]) == 4
    assert len(watch.seen) == len(set(watch.seen)) == 12 * ROUNDS


def test_a_time_in_which_nothing_is_finished_is_an_error(folder: Path, watch: type[Watch]) -> None:
    watch.stop_after = 2
    _, said = advise(folder, code=1)
    assert "not even one defense met all attacks in the time: the same command continues" in said


def test_a_deadline() -> None:
    job, record = Job(load(EXAMPLES / "hospitals.toml"), Path(), ""), RoundRecord(0, (), ())
    Deadline(time.monotonic() + 60).round_recorded(job, record)
    with pytest.raises(TimeIsUp):
        Deadline(time.monotonic()).round_recorded(job, record)


def test_what_takes_how_long_is_measured(folder: Path) -> None:
    experiment = next(load(folder / "mine.toml").cells())
    assert experiment.data.loaded is not None
    costs = measure_costs(experiment, experiment.data.loaded, torch.device("cpu"), (0.1, 0.2), 5.0)
    assert costs.defenses == (0.1, 0.2)
    assert costs.round > 0
    assert costs.evaluation > 0
    assert costs.start >= 0


def test_progress_counts_the_rounds_of_all_runs(folder: Path) -> None:
    cells = load(folder / "mine.toml", ["seeds=[0,1,2]"]).cells()
    jobs = [Job(cell, cell.folder(folder), f"run {number}") for number, cell in enumerate(cells)]
    bars = Progress(console=Console(file=StringIO(), force_terminal=True))
    display = TournamentDisplay(bars)
    display.jobs_started(jobs[1:], jobs[:1])
    (bar,) = bars.tasks
    assert (bar.completed, bar.total) == (ROUNDS, 3 * ROUNDS)
    for number in range(5, ROUNDS):  # was interrupted after five rounds
        display.round_recorded(jobs[1], RoundRecord(number, (), ()))
    assert bar.completed == 2 * ROUNDS
    assert bar.fields["note"] == "run 1"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("none.toml",), 2, "none.toml cannot be read"),
        (("sites.csv",), 2, "sites.csv is not valid TOML"),
        (("mine.toml", "--minutes", "0"), 2, "--minutes must be a positive number, got 0"),
        (("mine.toml", "--minutes", "nan"), 2, "--minutes must be a positive number, got nan"),
        (("mine.toml", "--minutes", "1"), 2, "--minutes must be at least 25 for 4 defenses, 3 attacks and 5 rounds"),
        (("mine.toml", "--metric", "mse"), 2, "metric 'mse' is unknown: choose from accuracy"),
        (("mine.toml", "--set", "training.rouns=3"), 2, "did you mean 'rounds'?"),
        (("mine.toml", "--set", "data.dataset=there.csv"), 2, "there.csv"),
        (("mine.toml", "--set", 'defenses=[{name="kram"}]'), 2, "did you mean 'krum'?"),
        (("mine.toml", "--set", "data.clients=1"), 2, "a tournament needs at least 2 clients, got 1"),
        (("mine.toml", "--device", "gpu"), 2, "device must be auto, cpu or cuda, got 'gpu'"),
    ],
)
def test_a_mistake_is_one_clear_line(folder: Path, arguments: Sequence[str], code: int, complaint: str) -> None:
    done = called("advise", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert complaint in done.stderr
    assert not (folder / "mine-advise.toml").exists()
    assert not (folder / "runs").exists()


def test_a_file_of_another_kind_is_not_overwritten(folder: Path) -> None:
    (folder / "mine-advise.toml").write_text("mine = true\n")
    _, said = advise(folder, code=2)
    assert "mine-advise.toml is needed for the plan, and was not written by this command: rename it" in said
    assert (folder / "mine-advise.toml").read_text() == "mine = true\n"


def test_what_cannot_take_part_is_left_out_with_its_reason(folder: Path, watch: type[Watch]) -> None:
    watch.stop_after = 1
    _, said = advise(folder, "--set", "data.malicious=0.6", code=1)
    for words in (
        "left out: multi-krum: ", "contamination must be in [0, 0.5), got 0.6",
        "left out: fltrust: needs data at the server (data.trusted = 100)",
        "left out: backdoor: Backdoor needs images [channels, height, width] with pixels in [0, 1]",
        "no time for the defenses ", "everything takes about --minutes ",
    ):  # fmt: skip
        assert words in said


def test_without_a_share_of_malicious_clients_one_is_assumed_and_named(folder: Path, watch: type[Watch]) -> None:
    watch.stop_after = 1
    (folder / "mine.toml").write_text(TOML.replace("malicious = 0.17", "") + STRONG)
    _, said = advise(folder, code=1)
    assert "data.malicious is not given: 20% of the clients attack" in said
    assert "left out: multi-krum: needs a guess of the share of malicious clients (data.malicious)" in said


@pytest.mark.slow
def test_from_a_table_of_hospitals_to_a_flower_server(tmp_path: Path) -> None:
    """A CSV file with a column for the hospital, advice, and a round of Flower with the lines that it prints."""
    pytest.importorskip("flwr")
    from federations import LocalGrid, honest, model, record, send_round, to_arrays

    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "own data"))
    answer, _ = advise(folder, "--set", f"training.rounds={ROUNDS}", file="hospitals.toml")
    assert answer["metric"] == "auroc"
    assert "Oncology" in answer["too_costly"]["multi-krum(contamination=0.2)"]
    assert answer["recommended"]["name"] != "multi-krum"
    names = dict[str, Any]()
    exec("\n".join(answer["flower"]), names)
    strategy, start = names["strategy"], model()
    assert strategy.weigh_by_examples
    replies = [honest(message) for message in send_round(strategy, start, LocalGrid(honest))]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert to_arrays(arrays).keys() == to_arrays(record(start)).keys()
    assert not (to_arrays(arrays)["head.weight"] == start["head.weight"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [("regression", ()), ("tokens", ("--set", "training.local_steps=1")), ("adapters", ())],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_tasks(name: str, changes: tuple[str, ...], tmp_path: Path) -> None:
    """Values with a metric of one's own, a transformer with token ids, adapters only."""
    pytest.importorskip("sklearn")
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "own data"))
    answer, said = advise(folder, "--set", f"training.rounds={ROUNDS}", *changes, file=f"{name}.toml")
    assert answer["finished"] == 12
    assert len(answer["why"]) == 3
    assert answer["metric"] == {"regression": "mae"}.get(name, "accuracy")
    assert ("label-flip: LabelFlip needs classes" in said) == (name == "regression")
