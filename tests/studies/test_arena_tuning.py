"""Tuning: the same small budget for every rule, a choice that can be followed by hand, and an arena that obeys it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from arena_runs import make
from commands import called
from cosdefense.aggregators import CenteredClipping
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_defense
from cosdefense.runs.records import RunRecord, read_run
from cosdefense.studies.arena.plan import FIELDS, Choice, plan
from cosdefense.studies.arena.tuned import Chosen, Tried, Tuned, read_grid, read_tuned, scale_options, show_options
from cosdefense.studies.arena.tuning import make_tuning_table, plan_tuning, write_tuned
from cosdefense.studies.study import experiments_folder

ATTACKS, RULES = read_grid()


def of_mnist() -> dict[str, dict[str, Any]]:
    """The defenses of the field that rules are tuned on."""
    table = tomllib.loads((experiments_folder("arena") / "mnist.toml").read_text(encoding="utf-8"))
    return {entry["label"]: {key: entry[key] for key in entry if key != "label"} for entry in table["defenses"]}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_every_rule_has_at_most_six_different_settings_its_own_first(rule: Any) -> None:
    parts = [build_defense(scale_options(setting, rule.times_lr, 0.01)) for setting in rule.settings]
    assert 2 <= len(parts) == len(set(parts)) <= 6
    assert parts[0] == build_defense(of_mnist()[rule.label])
    shown = [show_options(setting, rule.times_lr) for setting in rule.settings]
    assert len(shown) == len(set(shown))


def test_more_than_six_settings_are_refused(tmp_path: Path) -> None:
    settings = ", ".join(f"{{ name = 'rlr', agreement = 0.{n} }}" for n in range(1, 8))
    text = f"attacks = []\n[[rules]]\nlabel = 'RLR'\nsettings = [{settings}]"
    (tmp_path / "grid.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="RLR: at most 6 settings may be tried, got 7"):
        read_grid(tmp_path / "grid.toml")


def test_every_setting_meets_the_same_attacks_and_seeds() -> None:
    planned = plan_tuning("mnist", 0.3, Choice(seeds=(0, 1)))
    met: dict[str, set[tuple[str, int]]] = {}
    for run in planned.plan.runs:
        met.setdefault(run.defenses[0].label, set()).add((run.attacks[0].label, run.seeds[0]))
    assert len(met) == 1 + sum(len(rule.settings) for rule in RULES)  # and plain averaging
    assert set(map(frozenset, met.values())) == {frozenset((attack, seed) for attack in ATTACKS for seed in (0, 1))}
    assert {run.name for run in planned.plan.runs} == {"arena-tuning-mnist-30"}
    for seeds in ((10,), (0, 5)):
        with pytest.raises(ConfigError, match=f"--tune takes design seeds, 0 to 4, got {seeds[-1]}"):
            plan_tuning("mnist", 0.3, Choice(seeds=seeds))
    with pytest.raises(ConfigError, match="tunable defense 'LASSA' is unknown: did you mean 'LASA'"):
        plan_tuning("mnist", 0.3, Choice(defenses=["LASSA"]))


def finished(ends: dict[tuple[str, str], float]) -> list[RunRecord]:
    """Runs of the tuning that ended like this, by options and attack; and plain averaging without one."""
    runs = [make("plain", "none", 0, 0.9)]
    for (options, attack), tail in ends.items():
        run = make("median", attack, 0, tail)
        run.header["defense"] = run.header["experiment"]["defenses"][0]["label"] = f"bucketing: {options}"  # type: ignore[index]
        runs.append(run)
    for run in runs:
        run.header["experiment"]["name"] = "arena-tuning-mnist-30"
    return runs


SIZES = {  # plain averaging without an attack ends at 0.9
    ("size = 2", "ipm"): 0.9, ("size = 2", "adaptive"): 0.5,
    ("size = 3", "ipm"): 0.6, ("size = 3", "adaptive"): 0.6,
    ("size = 4", "ipm"): 0.7, ("size = 4", "adaptive"): 0.6,
    ("size = 5", "ipm"): 0.7, ("size = 5", "adaptive"): 0.6,
}  # fmt: skip


def test_the_best_worst_case_is_chosen_then_the_best_mean_then_the_first() -> None:
    choice = Choice(["bucketing"], ["inner product ε = 5", "adaptive"], (0,))
    planned = plan_tuning("mnist", 0.3, choice)
    tuned = planned.choose(finished(SIZES))
    (chosen,) = tuned.chosen
    assert chosen.setting == {"name": "bucketing", "size": 4}
    assert [tried.options for tried in chosen.tried] == ["size = 4", "size = 5", "size = 3", "size = 2"]
    best = chosen.tried[0]
    assert (best.worst_attack, best.worst_accuracy) == ("adaptive", 0.6)
    assert best.mean_accuracy == pytest.approx(0.65)
    assert [row[2] for row in make_tuning_table(tuned).rows] == ["chosen", "–", "–", "–"]
    lacking = {key: end for key, end in SIZES.items() if key != ("size = 2", "ipm")}
    assert planned.choose(finished(lacking)).chosen == ()  # not all of its runs are there


def test_how_far_a_model_is_destroyed_does_not_matter() -> None:
    planned = plan_tuning("mnist", 0.3, Choice(["bucketing"], ["inner product ε = 5", "adaptive"], (0,)))
    destroyed = {key: 0.10 if key[1] == "adaptive" else end for key, end in SIZES.items()}
    destroyed["size = 3", "adaptive"] = 0.12
    assert planned.choose(finished(destroyed)).chosen[0].setting == {"name": "bucketing", "size": 2}  # the best mean


CHOSEN = Tuned(
    {"field": "mnist", "attackers": 0.3, "rounds": 300, "seeds": [0, 1], "attacks": ["adaptive"], "code": "abc"},
    (
        Chosen(
            "centered clipping",
            {"aggregator": {"name": "centered-clipping", "radius": 5.0}},
            ("aggregator.radius",),
            (Tried("radius = 5 × lr", "adaptive", 0.5, 0.7),),
        ),
        Chosen("RLR", {"name": "rlr", "agreement": 0.2}, (), (Tried("agreement = 0.2", "adaptive", 0.4, 0.5),)),
    ),
)


def test_what_was_chosen_survives_its_file(tmp_path: Path) -> None:
    write_tuned(tmp_path / "tuned.toml", CHOSEN)
    assert read_tuned(tmp_path / "tuned.toml") == CHOSEN
    (tmp_path / "other.toml").write_text("[[rules]]", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not what cosdefense arena --tune writes"):
        read_tuned(tmp_path / "other.toml")


@pytest.mark.parametrize(("field", "radius"), [("mnist", 0.05), ("digits", 0.6), ("tabular", 0.25)])
def test_the_arena_uses_it_on_every_field(field: str, radius: float) -> None:
    """Five times the learning rate of the field."""
    assert field in FIELDS
    choice = Choice(["centered clipping", "RLR", "median"], ["noise"], (0,), tuned=CHOSEN)
    parts = {run.defenses[0].label: run.defenses[0].part for run in plan([field], [0.3], choice).runs}
    assert parts["centered clipping"].aggregator == CenteredClipping(radius=radius)
    assert parts["RLR"] == build_defense({"name": "rlr", "agreement": 0.2})
    assert parts["median"] == build_defense({"name": "median"})


def test_ones_own_defenses_stay_as_they_are(tmp_path: Path) -> None:
    own = "[data]\ndataset = 'digits'\n[training]\nlr = 0.1\n[[defenses]]\nname = 'rlr'\nlabel = 'RLR'\n"
    (tmp_path / "own.toml").write_text(own, encoding="utf-8")
    runs = plan([str(tmp_path / "own.toml")], [0.3], Choice(["RLR"], ["noise"], (0,), tuned=CHOSEN)).runs
    assert runs[-1].defenses[0].part == build_defense({"name": "rlr"})
    assert {run.defenses[0].label for run in runs} == {"fedavg", "RLR"}  # plain averaging is always there


def test_the_command_tunes_resumes_and_the_arena_reads_what_it_wrote(tmp_path: Path) -> None:
    words = ("arena", "--dataset", "digits", "--rounds", "2", "--device", "cpu", "--seeds", "1")
    few = (*words, "--tune", "--defenses", "bucketing", "--attacks", "none,noise")
    done = called(*few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("records.jsonl"))) == 10  # plain averaging and four sizes, with and without attack
    path = tmp_path / "runs" / "tuning" / "tuned.toml"
    tuned = read_tuned(path)
    assert tuned is not None
    assert tuned.source["attacks"] == ["noise"]
    (chosen,) = tuned.chosen
    size = chosen.setting["size"]
    ends = {
        run.label.rpartition(" = ")[2]: run.summary["tail_accuracy"]
        for run in map(read_run, tmp_path.rglob("records.jsonl"))
        if run.header["attack"] == "noise" and run.summary
    }
    assert ends[str(size)] == max(ends[str(n)] for n in (2, 3, 4, 5))
    again = called(*few, cwd=tmp_path)
    assert "10 runs were finished earlier" in again.stderr
    used = called(*words, "--defenses", "bucketing", "--attacks", "noise", "--tuned", str(path), cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    (run,) = [one for one in map(read_run, (tmp_path / "runs" / "arena").rglob("records.jsonl")) if one.label != "none"]
    assert run.header["experiment"]["defenses"][0]["aggregator"]["size"] == size
    assert run.header["tuned"] == tuned.source


OWN = """
[data]
dataset = "digits"
[training]
rounds = 2
evaluate_every = 1
[[attacks]]
name = "none"
[[attacks]]
name = "noise"
[[defenses]]
label = "none"
name = "fedavg"
[[defenses]]
label = "median"
name = "median"
"""


def test_the_command_takes_the_best_of_another_field(tmp_path: Path) -> None:
    """Of two defenses under one attack, in two rounds; and the one that is named."""
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    words = ("arena", "--seeds", "1", "--device", "cpu")
    wanted = (*words, "--rounds", "4", "--attacks", "noise", "--best", "1", "--ranked-on", "own.toml")
    early = called(*wanted, cwd=tmp_path)
    assert early.returncode == 2
    assert "--best needs the finished runs of arena-own-30 with design seeds: there are none" in early.stderr
    assert called(*words, "--dataset", "own.toml", cwd=tmp_path).returncode == 0
    ends = {
        run.label: run.summary["tail_accuracy"]
        for run in map(read_run, tmp_path.rglob("records.jsonl"))
        if run.summary and run.header["attack"] == "noise"
    }
    best = max(ends, key=lambda label: ends[label])
    done = called(*wanted, "--defenses", "Krum", "--list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"note: the best on own.toml, with design seeds: {best}\n" in done.stderr
    n_defenses = len({"none", "Krum", best})  # plain averaging is always there
    assert f"| arena-digits-30 | 2 | {n_defenses} | 1 | 3 | 12 | 0 |" in done.stdout
