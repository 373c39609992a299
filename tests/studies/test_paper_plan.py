"""Which runs the paper's tables and figures need: each once, with the paper's constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cosdefense.attacks import InnerProduct
from cosdefense.catalog.options import ConfigError
from cosdefense.data import load as load_data
from cosdefense.data.partition import LabelSkew
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table
from cosdefense.runs.packed_records import read_pack, write_pack
from cosdefense.runs.records import read_run
from cosdefense.runs.single_run import run
from cosdefense.studies.paper.plan import ALL, CLAIMS, DRIFT, FIGURES, PAPERS_DATASETS, QUICK, compact_run, files, plan

TINY = {
    "data": {"dataset": "digits", "clients": 20},
    "model": {"name": "mlp", "hidden": 8},
    "training": {"rounds": 7, "sampled": 5, "batch": 4, "evaluate_every": 3},
    "attacks": [{"name": "inner-product"}],
    "defenses": [{"name": "cosdefense"}],
}


def experiments(*wanted: str, quick: bool = False) -> list[Experiment]:
    planned = plan(wanted, quick=quick)
    return [*planned.runs, *planned.drift]


def n_runs(*wanted: str, **options: Any) -> int:
    planned = plan(wanted, **options)
    return len(planned.runs) + len(planned.drift)


def folders(*wanted: str, quick: bool = False) -> set[Path]:
    return {experiment.folder(Path()) for experiment in experiments(*wanted, quick=quick)}


@pytest.mark.parametrize("quick", [False, True])
def test_every_run_is_planned_once(quick: bool) -> None:
    found = experiments(*FIGURES, ALL, quick=quick)
    assert len(folders(ALL, quick=quick)) == len(found)
    assert len({(experiment.fingerprint, experiment.name) for experiment in found}) == len(found)


@pytest.mark.parametrize("quick", [False, True])
def test_all_is_every_figure(quick: bool) -> None:
    assert folders(ALL, quick=quick) == set().union(*(folders(name, quick=quick) for name in FIGURES))
    assert folders("table3", quick=quick) == folders("figure3", quick=quick)


# Counted by hand. Table 3: 2 attacks × 5 defenses, less the authors' Krum without attack, × 5, 5 and 2 seeds, and
# the counters, 2 seeds. Figure 1: 5 seeds. Figure 2: with and without attack. Figures 4 and 6: 3 defenses × 4 shares
# and 3 degrees, × 5 seeds, one of each taken from table 3. Claims: 5 layers (3 with the small network), 5 aggregators
# alone and behind CosDefense, 2 backdoors × 4 defenses.
@pytest.mark.parametrize(
    ("name", "in_full", "quickly"),
    [
        ("table3", 9 * 5 + 9 * 5 + 9 * 2 + 2, 9 + 9 + 9),
        ("figure1", 5, 1),
        ("figure2", 2 * 5, 2),
        ("figure3", 110, 27),
        ("figure4", 3 * 4 * 5, 3 * 4),
        ("figure6", 3 * 3 * 5, 3 * 3),
        ("layers", 5 * 5, 3),
        ("aggregators", 10 * 5, 10),
        ("backdoors", 2 * 4 * 5, 8),
        ("claims", 25 + 50 + 40, 3 + 10 + 8),
        ("all", 110 + 5 + 10 + 3 * 3 * 5 + 3 * 2 * 5, 27 + 1 + 2 + 3 * 3 + 3 * 2),
    ],
)
def test_how_many_runs_there_are(name: str, in_full: int, quickly: int) -> None:
    assert n_runs(name) == in_full
    assert n_runs(name, quick=True) == quickly
    assert n_runs(name, n_seeds=1) <= quickly + 2  # and the counters, and the layers of a larger network


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("figure", ["figure4", "figure6"])
def test_a_figures_default_setting_is_table_3s_own_runs(figure: str, quick: bool) -> None:
    shared = folders(figure, quick=quick) & folders("table3", quick=quick)
    defaults = [e for e in experiments(figure, quick=quick) if e.data.malicious == 0.3 and _q(e) == 0.5]
    assert {experiment.folder(Path()) for experiment in defaults} == shared
    assert {experiment.name for experiment in defaults} == {"paper-mnist"}
    assert {experiment.defenses[0].label for experiment in defaults} == {"Krum", "Clipping-Median", "CosDefense"}


def test_figures_vary_what_they_say() -> None:
    assert {(e.name, e.data.malicious) for e in experiments("figure4")} == {
        ("paper-attackers-10", 0.1), ("paper-attackers-20", 0.2), ("paper-mnist", 0.3), ("paper-attackers-40", 0.4),
    }  # fmt: skip
    assert {(e.name, _q(e)) for e in experiments("figure6")} == {
        ("paper-skew-0.1", 0.1), ("paper-skew-0.3", 0.3), ("paper-mnist", 0.5),
    }  # fmt: skip


INGREDIENTS = {part.file for parts in (*FIGURES.values(), *CLAIMS.values(), (DRIFT,)) for part in parts}


@pytest.mark.parametrize("file", sorted(INGREDIENTS))
def test_files_exist(file: str) -> None:
    assert (files() / f"{file}.toml").is_file()


def test_quick_settings_are_for_files_that_are_used() -> None:
    assert set(QUICK) <= INGREDIENTS


def test_full_settings_are_the_papers() -> None:
    for experiment in experiments("table3", "figure3", "figure4", "figure6", *CLAIMS):
        data, training, schedule = experiment.data, experiment.training, experiment.schedule
        assert (data.clients, training.sampled) == (100, 10)
        rounds = 600 if experiment.name == "paper-backdoors" else 1000
        assert (training.rounds, schedule.attack_start, schedule.defense_start) == (rounds, 200, 200)
        assert (training.batch, training.lr, training.local_steps) == (128, 0.01, 1)
        assert (training.momentum, training.weight_decay) == (0, 0)
        if experiment.name.startswith(("paper-mnist", "paper-fashion", "paper-cifar")):
            assert (data.malicious, data.partition) == (0.3, LabelSkew(0.5))
        cifar = data.dataset == "cifar-10"
        assert dict(experiment.model)["name"] in (
            ("resnet18", "authors:resnet18_with_counters") if cifar else ("paper-cnn",)
        )
    for experiment in experiments("figure2"):  # scored from the start, rejected from round 200 on
        assert (experiment.schedule.attack_start, experiment.schedule.defense_start) == (200, 0)
        assert experiment.defenses[0].part.filters[0].patience == 200  # type: ignore[attr-defined]
    for experiment in experiments("figure1"):
        assert (experiment.data.clients, experiment.training.sampled) == (10, 10)
        assert experiment.training.rounds * experiment.training.local_steps == 1000


def test_the_attack_is_the_papers() -> None:
    attacks = {experiment.attacks[0].label: experiment.attacks[0].part for experiment in experiments(ALL)}
    assert attacks.pop("inner product") == InnerProduct(5.0)
    assert set(attacks) == {"none"}


def test_seeds() -> None:
    for dataset, n in (("mnist", 5), ("fashion-mnist", 5), ("cifar-10", 2)):
        found = {(run.name, *run.seeds) for run in plan([ALL], datasets=[dataset]).runs}
        assert found == {(name, seed) for name, _ in found for seed in range(n)}
    assert {run.seeds for run in plan([ALL], n_seeds=3).runs} == {(0,), (1,), (2,)}
    assert {run.seeds for run in plan([ALL], quick=True).runs} == {(0,)}
    assert {run.seeds for run in plan([ALL], quick=True, n_seeds=2).drift} == {(0,), (1,)}


def test_datasets_can_be_chosen() -> None:
    chosen = plan(["table3"], datasets=["mnist", "cifar-10"])
    assert {run.data.dataset for run in chosen.runs} == {"mnist", "cifar-10"}
    assert {run.data.dataset for run in plan(["table3"]).runs} == set(PAPERS_DATASETS)
    assert plan([ALL], datasets=["cifar-10"]).drift == ()


def test_krum_that_is_given_the_number_of_attackers_is_not_run_without_any() -> None:
    pairs = {(e.attacks[0].label, e.defenses[0].label) for e in experiments(ALL)}
    assert ("none", "Krum (its paper)") in pairs
    assert ("none", "Krum") not in pairs


def test_only_figure_1_is_no_federation() -> None:
    assert plan(["figure1"]).runs == ()
    assert {name for name in FIGURES if plan([name]).drift} == {"figure1"}


def test_quick_needs_no_gpu() -> None:
    for experiment in experiments(ALL, quick=True):
        assert dict(experiment.model)["name"] in ("small-cnn", "mlp")
        assert "counters" not in experiment.name
        assert not experiment.training.batch_statistics  # those networks have no BatchNorm
        assert experiment.training.rounds < 1000


def test_quick_asks_the_same_questions() -> None:
    """Who takes part, who lies and how, and whose data are how different, are the paper's."""
    asked = {(e.name, e.attacks[0].label, e.defenses[0].label): e for e in experiments(ALL)}
    for experiment in experiments(ALL, quick=True):
        original = asked[experiment.name, experiment.attacks[0].label, experiment.defenses[0].label]
        assert experiment.data == original.data
        assert experiment.attacks == original.attacks
        assert experiment.training.sampled == original.training.sampled
        if experiment.name != "paper-scores":  # which begins to reject when the attack begins
            assert experiment.defenses == original.defenses
            assert experiment.schedule.attack_start == experiment.schedule.defense_start
        else:
            (rule,) = experiment.defenses[0].part.filters
            assert rule.patience == experiment.schedule.attack_start  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wanted", "datasets", "n_seeds", "found"),
    [
        (["figure5"], (), None, "table, figure or claim 'figure5' is unknown: .*figure"),
        (["table3", "figur1"], (), None, "'figur1' is unknown: did you mean 'figure1'"),
        (["all"], ("minst",), None, "dataset 'minst' is unknown: did you mean 'mnist'"),
        (["all"], ("digits",), None, "dataset 'digits' is unknown"),  # there is one, but not in the paper
        (["all"], (), 0, "--seeds must be at least 1, got 0"),
        (["figure4"], ("cifar-10",), None, "figure4 needs no run on cifar-10"),
        (["figure4", "figure6"], ("fashion-mnist", "cifar-10"), 1, "figure4, figure6 needs .* fashion-mnist, cifar-10"),
    ],
)
def test_mistakes_are_named(wanted: list[str], datasets: tuple[str, ...], n_seeds: int | None, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        plan(wanted, datasets=datasets, n_seeds=n_seeds)


@pytest.mark.parametrize("name", ["paper-mnist", "paper-scores"])
def test_published_records_say_the_same_with_less(name: str, tmp_path: Path) -> None:
    cell = from_table({"name": name, **TINY})
    folder = cell.folder(tmp_path / "runs")
    run(cell, folder, load_data("digits"), torch.device("cpu"))
    whole, path = read_run(folder), tmp_path / "pack.jsonl.gz"
    write_pack(path, [compact_run(whole)])
    (kept,) = read_pack(path)
    assert kept.thinned
    assert kept.summary == whole.summary
    assert (kept.experiment, kept.label, kept.n_rounds) == (whole.experiment, whole.label, whole.n_rounds)
    if name == "paper-scores":  # figure 2 needs every round
        assert [record.scores for record in kept.rounds] == [record.scores for record in whole.rounds]
    else:
        assert [record.round for record in kept.rounds] == [2, 5, 6]
        assert not any(record.scores for record in kept.rounds)
    assert path.stat().st_size < (folder / "records.jsonl").stat().st_size


def _q(experiment: Experiment) -> float:
    assert isinstance(experiment.data.partition, LabelSkew)
    return experiment.data.partition.q
