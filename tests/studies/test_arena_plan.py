"""The arena: which runs it takes, which parts get the true share, and the command from first run to published page."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import called
from cosdefense import Defense
from cosdefense.aggregators import Bulyan, TrimmedMean
from cosdefense.attacks import Adaptive, Attack, KrumPoisoning, Planning
from cosdefense.catalog.options import ConfigError
from cosdefense.data.datasets import load
from cosdefense.data.partition import LabelSkew
from cosdefense.filters import Krum, MultiKrum
from cosdefense.runs.experiment import Entry, Experiment
from cosdefense.runs.experiment_file import load as load_file
from cosdefense.runs.packed_records import PACK, read_pack
from cosdefense.runs.records import read_run
from cosdefense.runs.single_run import run
from cosdefense.studies.arena.plan import FIELDS, SCHEDULED, Choice, plan
from cosdefense.studies.study import experiments_folder

MAIN = FIELDS[:4]  # the same federation on four datasets
FEW: dict[str, Any] = {"seeds": [0], "defenses": ["none", "Krum"]}


def experiments(*datasets: str, attackers: tuple[float, ...] = (0.3,), **choice: Any) -> list[Experiment]:
    return list(plan(datasets or ("digits",), attackers, Choice(**choice)).runs)


def pairs(**choice: Any) -> list[tuple[str, str]]:
    labels = [(e.attacks[0].label, e.defenses[0].label) for e in experiments(seeds=[0], **choice)]
    assert len(labels) == len(set(labels))
    return labels


def field(dataset: str) -> dict[str, Any]:
    return tomllib.loads((experiments_folder("arena") / f"{dataset}.toml").read_text(encoding="utf-8"))


def labels(table: dict[str, Any], kind: str) -> list[str]:
    return [entry.get("label", entry.get("name")) for entry in table[kind]]


def test_every_defense_meets_every_attack_once_per_seed() -> None:
    table = field("digits")
    able = [label for label in labels(table, "defenses") if label != "Bulyan"]  # it tolerates less than a quarter
    planned = experiments()
    cells = {(e.attacks[0].label, e.defenses[0].label, e.seeds) for e in planned}
    attacks = [*labels(table, "attacks"), *SCHEDULED]
    assert cells == {(a, d, (s,)) for a in attacks for d in able for s in range(3)}
    assert len(planned) == len(cells)


@pytest.mark.slow
def test_every_run_has_its_own_folder() -> None:
    planned = experiments(*FIELDS, attackers=(0.1, 0.3), seeds=[0], defenses=["none", "Krum", "Factions"])
    assert len({experiment.folder(Path()) for experiment in planned}) == len(planned)


def test_all_datasets_have_the_same_attacks_and_defenses() -> None:
    others = {"tuning", "tuned"}  # not fields: what is tried, and what was chosen
    assert {path.stem for path in experiments_folder("arena").glob("*.toml")} - others == set(FIELDS)
    first = field(MAIN[0])
    for dataset in MAIN[1:]:
        attacks = [entry for entry in field(dataset)["attacks"] if entry["name"] != "poisoned-buffers"]
        assert attacks == first["attacks"]
        assert labels(field(dataset), "defenses") == labels(first, "defenses")


@pytest.mark.parametrize("dataset", MAIN)
def test_the_settings_are_the_same_on_every_dataset(dataset: str) -> None:
    for experiment in experiments(dataset, seeds=[0]):
        data, training, schedule = experiment.data, experiment.training, experiment.schedule
        assert (data.dataset, data.clients, data.malicious, data.trusted) == (dataset, 100, 0.3, 100)
        assert data.partition == LabelSkew(0.5)
        assert (training.rounds, training.sampled, training.evaluate_every) == (300, 10, 5)
        assert (schedule.attack_stop, schedule.defense_start) == (None, 0)
        label = experiment.attacks[0].label
        assert schedule.attack_start == (150 if label == "late inner product" else 0)
        assert (schedule.attack_period, schedule.attack_rounds) == (
            (20, 10) if label == "on–off inner product" else (None, 1)
        )
        if dataset != "digits":  # the paper's
            assert (training.batch, training.lr, training.local_steps, training.tf32) == (128, 0.01, 1, True)
            assert dict(experiment.model)["name"] == ("resnet18" if dataset == "cifar-10" else "paper-cnn")


def test_fields_that_differ_in_one_thing_say_in_what() -> None:
    """The horizon of the paper from both starts, all trials, and two federations that no rule was tuned on."""
    few: dict[str, Any] = {"seeds": [0], "defenses": ["none", "Factions"], "attacks": ["inner-product"]}
    (usual, *_), (long, *_), (late, *_) = (experiments(f"mnist{end}", **few) for end in ("", "-1000", "-1000-from-200"))
    assert (long.training.rounds, long.schedule) == (1000, usual.schedule)
    assert replace(long.training, rounds=300, evaluate_every=5) == usual.training
    paper = load_file(experiments_folder("paper") / "mnist.toml")
    assert replace(late.training, batch=paper.training.batch) == paper.training
    assert (late.schedule, late.model) == (paper.schedule, paper.model)
    assert replace(late.data, trusted=0) == paper.data
    searching = experiments("mnist-150-trials", seeds=[0], defenses=["none"])
    assert [run.attacks[0].part for run in searching[1:]] == [Adaptive(trials=150), Planning(trials=150)]
    whole = experiments("full-participation", **few)[0]
    assert whole.data.clients == whole.training.sampled == 20
    assert whole.training.local_epochs == 5


def test_a_table_leaves_out_what_was_made_for_images() -> None:
    planned = plan(["tabular"], [0.3], Choice(seeds=[0], defenses=["none", "FLTrust", "DeepSight"]))
    present = {run.defenses[0].label for run in planned.runs}
    absent = {text.partition(" is left out")[0] for text in planned.left_out}
    assert "FLTrust" in present
    assert "model replacement" in absent
    assert not absent & {run.attacks[0].label for run in planned.runs}
    data = planned.runs[0].data.loaded
    assert data is not None
    assert len(data.train_targets) + len(data.test_targets) == 569


def test_names_say_dataset_and_share() -> None:
    found = {(e.name, e.data.malicious) for e in experiments("mnist", "cifar-10", attackers=(0.1, 0.125, 0.3), **FEW)}
    assert found == {
        (f"arena-{dataset}-{text}", share)
        for dataset in ("mnist", "cifar-10")
        for text, share in (("10", 0.1), ("12.5", 0.125), ("30", 0.3))
    }


@pytest.mark.slow
def test_the_order_of_the_arguments_does_not_matter() -> None:
    one = experiments("mnist", "digits", attackers=(0.3, 0.1), **FEW)
    assert one == experiments("digits", "mnist", "digits", attackers=(0.1, 0.3), **FEW)
    assert [e.name for e in one] == sorted([e.name for e in one])


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_parts_that_take_a_guess_get_the_true_share(share: float) -> None:
    defenses: dict[str, Defense] = {}
    attacks: dict[str, Attack] = {}
    for experiment in experiments(attackers=(share,), seeds=[0]):
        defenses[experiment.defenses[0].label] = experiment.defenses[0].part
        attacks[experiment.attacks[0].label] = experiment.attacks[0].part
    assert defenses["Krum"].filters == (Krum(share),)
    assert defenses["Multi-Krum"].filters == (MultiKrum(share),)
    assert defenses["trimmed mean"].aggregator == TrimmedMean(share)
    assert attacks["LMP Krum"] == KrumPoisoning(share)
    assert attacks["adaptive"] == Adaptive(trials=75, stop_at_damage=1.5)
    if share == 0.1:
        assert defenses["Bulyan"].aggregator == Bulyan(0.1)


NEIGHBORS = ("NNM", "ARC", "DnC")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "absent"),
    [
        (0.1, {}),
        (0.2, {"Bulyan": "Bulyan needs at least 11 clients to tolerate 2 attackers, got 10"}),
        (0.3, {"Bulyan": "must be in [0, 0.25), got 0.3"}),
        (0.4, {"Krum": "needs more than 10", "Multi-Krum": "needs more than 10", "Bulyan": "got 0.4"}),
        (0.6, dict.fromkeys(("LMP Krum", "Krum", "Multi-Krum", "trimmed mean", "Bulyan", *NEIGHBORS), "got 0.6")),
    ],
)
def test_a_rule_that_cannot_work_is_left_out_and_named(share: float, absent: dict[str, str]) -> None:
    planned = plan(["digits"], [share], Choice(seeds=[0]))
    assert len(planned.left_out) == len(absent)
    for text, (label, why) in zip(planned.left_out, absent.items(), strict=True):
        assert text.startswith(f"{label} is left out at {share:.0%} attackers on digits: ")
        assert why in text
    present = {run.attacks[0].label for run in planned.runs} | {run.defenses[0].label for run in planned.runs}
    assert not present & set(absent)
    assert plan(["digits"], [share], Choice(defenses=["median"], attacks=["ALIE"])).left_out == ()


def test_a_choice_by_label_or_name_always_includes_the_reference() -> None:
    assert pairs(defenses=["median", "CosDefense"], attacks=["ALIE"]) == [
        ("none", "none"), ("ALIE", "median"), ("ALIE", "CosDefense"),
    ]  # fmt: skip
    chosen = pairs(defenses=["geometric-median", "Trimmed-Mean"], attacks=["inner-product"])
    assert chosen == [
        ("none", "none"),
        *(
            (attack, defense)
            for attack in ("inner product ε = 5", "inner product ε = 1", *SCHEDULED)
            for defense in ("geometric median", "trimmed mean")
        ),
    ]
    assert pairs(defenses=["Bulyan"], attacks=["noise"]) == [("none", "none")]


@pytest.mark.slow
def test_rounds_and_settings_can_be_changed() -> None:
    for rounds, every in ((300, 5), (30, 1), (1000, 16), (4, 1)):
        for experiment in experiments(rounds=rounds, **FEW):
            assert (experiment.training.rounds, experiment.training.evaluate_every) == (rounds, every)
    changes = ["training.rounds=7", "data.clients=40", "name=other", "data.malicious=0.9", "seeds=[5]"]
    for experiment in experiments(rounds=9, changes=changes, **FEW):
        assert (experiment.training.rounds, experiment.data.clients) == (7, 40)
        assert (experiment.name, experiment.data.malicious) == ("arena-digits-30", 0.3)
    assert {e.seeds for e in experiments(changes=changes, seeds=[0, 1], defenses=["none"])} == {(0,), (1,)}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"defenses": ["cosdefence"]}, "defense 'cosdefence' is unknown: did you mean 'CosDefense'"),
        ({"attacks": ["ALIE", "Min-Mox"]}, "attack 'Min-Mox' is unknown: did you mean 'Min-Max'"),
        ({"attacks": [""]}, "attack '' is unknown: choose from"),
        ({"rounds": 0}, "--rounds must be at least 1, got 0"),
        ({"changes": ["training.rouns=3"]}, "did you mean 'rounds'"),
        ({"attackers": (0.3, 0.0)}, "--attackers must lie between 0 and 1, got 0"),
        ({"attackers": (1.0,)}, "--attackers must lie between 0 and 1, got 1"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        experiments(**arguments)


@pytest.mark.slow
def test_every_defense_and_every_attack_runs(tmp_path: Path) -> None:
    """Two rounds each: every attack with one defense and every defense with one attack; if thorough, all pairs."""
    planned = experiments(rounds=2, seeds=[0], changes=["data.clients=20", "data.trusted=40", "model.width=2"])
    attacks, defenses = (list(dict.fromkeys(get(e).label for e in planned)) for get in (_attack, _defense))
    n = max(len(attacks), len(defenses))
    chosen = {(attacks[i % len(attacks)], defenses[i % len(defenses)]) for i in range(n)}
    dataset = load("digits")
    for cell in planned:
        if os.environ.get("COSDEFENSE_THOROUGH") or (_attack(cell).label, _defense(cell).label) in chosen:
            cell = replace(cell, training=replace(cell.training, evaluate_every=2))
            assert run(cell, cell.folder(tmp_path), dataset, torch.device("cpu"))
    finished = list(tmp_path.rglob("records.jsonl"))
    assert len(finished) >= n
    assert all(read_run(path).summary is not None for path in finished)


def _attack(cell: Experiment) -> Entry[Attack]:
    return cell.attacks[0]


def _defense(cell: Experiment) -> Entry[Defense]:
    return cell.defenses[0]


def test_an_unknown_dataset_is_named() -> None:
    with pytest.raises(ConfigError, match="dataset 'minst' is unknown: did you mean 'mnist'"):
        experiments("digits", "minst")


def write_own(folder: Path, parts: str = "") -> str:
    """An experiment file with a table of four sites."""
    lines = [f"{'abcd'[number % 4]},{('no', 'yes')[number // 4 % 2]},{number}.5" for number in range(64)]
    (folder / "sites.csv").write_text("\n".join(["site,answer,value", *lines]))
    data = '[data]\ndataset = { name = "sites.csv", label = "answer", client = "site" }\n[model]\nname = "mlp"\n'
    (folder / "my own.toml").write_text(data + parts)
    return str(folder / "my own.toml")


def test_a_file_of_ones_own_brings_its_attacks_and_defenses(tmp_path: Path) -> None:
    """Plain averaging and no attack are added, because all others are measured by them."""
    file = write_own(tmp_path, '[[attacks]]\nname = "sign-flip"\n[[defenses]]\nname = "trimmed-mean"\n')
    runs = experiments(file, attackers=(0.25,), seeds=[0])
    assert [(_attack(cell).label, _defense(cell).label) for cell in runs] == [
        ("none", "fedavg"), ("none", "trimmed-mean"), ("sign-flip", "fedavg"), ("sign-flip", "trimmed-mean"),
    ]  # fmt: skip
    assert {cell.name for cell in runs} == {"arena-my-own-25"}
    assert all((cell.data.clients, cell.training.sampled, cell.data.malicious) == (4, 4, 0.25) for cell in runs)
    assert _defense(runs[1]).part.aggregator == TrimmedMean(0.25)  # the true share


def test_a_file_of_ones_own_without_parts_meets_those_of_the_digits(tmp_path: Path) -> None:
    """What was not made for its data, or not for so few clients, is left out with the reason."""
    planned = plan([write_own(tmp_path)], [0.25], Choice(seeds=[0]))
    met = {_attack(cell).label for cell in planned.runs}
    assert {"none", "sign flip × 5", "label flip"} <= met
    assert "model replacement" not in met
    (why,) = (reason for reason in planned.left_out if reason.startswith("model replacement "))
    assert "needs images [channels, height, width] with pixels in [0, 1]" in why
    assert any(reason.startswith("Krum ") and "needs more than" in reason for reason in planned.left_out)


TINY = ("--defenses", "none,median", "--attacks", "none,sign flip × 5", "--rounds", "4", "--seeds", "1")


@contextmanager
def no_drawing_library() -> Iterator[None]:
    """As if altair were not installed: modules that were imported with it are imported again."""
    drawing = (".figure", ".figures", ".chart_elements", ".curves", ".heatmaps", ".page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "altair", None)
        for name in [name for name in sys.modules if name.startswith("cosdefense.") and name.endswith(drawing)]:
            patch.delitem(sys.modules, name)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an arena of two defenses and two attacks was run by one process."""
    folder = tmp_path_factory.mktemp("arena")
    with no_drawing_library():
        done = called("arena", *TINY, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "note: nothing was drawn, because a report needs altair" in done.stderr
    assert "| No oracle | median | nothing | – | sign flip × 5 |" in done.stdout
    assert {path.name for path in (folder / "runs" / "arena").iterdir()} == {"arena-digits-30", "tables.md"}
    return folder


@pytest.mark.slow
def test_finished_runs_are_not_repeated_and_drawn_where_that_is_possible(folder: Path) -> None:
    records = {path: path.read_bytes() for path in folder.rglob("records.jsonl")}
    assert len(records) == 4
    again = called("arena", *TINY, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished earlier") == 4
    assert {path: path.read_bytes() for path in records} == records
    out = folder / "runs" / "arena"
    assert (out / "arena-digits-30.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "report.html").stat().st_size > 100_000
    assert again.stdout.startswith((out / "tables.md").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_several_processes_do_the_same(folder: Path, tmp_path: Path) -> None:
    done = called("arena", *TINY, "--jobs", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert set(written) == {"page", "figures", "tables"}
    for path in folder.rglob("records.jsonl"):
        twin = tmp_path / path.relative_to(folder)
        summaries = [json.loads(text.read_text().splitlines()[-1])["summary"] for text in (path, twin)]
        assert summaries[0]["tail_accuracy"] == summaries[1]["tail_accuracy"]


def test_published_records_give_the_same_tables(folder: Path, tmp_path: Path) -> None:
    done = called("arena", *TINY, "--draw", "--publish", str(tmp_path / "first"), cwd=folder)
    assert done.returncode == 0, done.stderr
    kept = list(read_pack(tmp_path / "first" / PACK))
    assert [[record.round for record in run.rounds] for run in kept] == [[0, 1, 2, 3]] * 4  # every evaluation
    assert all(record.accuracy is not None and record.loss is not None for run in kept for record in run.rounds)
    places = ("--out", str(tmp_path / "first"), "--publish", str(tmp_path / "again"))
    again = called("arena", *TINY, "--draw", *places, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    for name in ("tables.md", "report.html", PACK):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    tables = (folder / "runs" / "arena" / "tables.md").read_text(encoding="utf-8")
    assert (tmp_path / "first" / "tables.md").read_text(encoding="utf-8") == tables


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--draw",), "holds no run that belongs to this arena"),
        (("--defenses", "median,Krumm"), "defense 'Krumm' is unknown: did you mean 'Krum'?"),
        (("--dataset", "imagenet"), "dataset 'imagenet' is unknown"),
        (("--attackers", "many"), "--attackers must be shares like 0.1,0.3, got 'many'"),
        (("--jobs", "all"), "--jobs must be a number or auto"),
    ],
)
def test_a_mistake_is_one_line_not_a_traceback(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    done = called("arena", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
