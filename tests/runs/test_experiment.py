"""Experiments survive TOML, and every mistake is one line that names the key."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cosdefense import get
from cosdefense.attacks import Attack, InnerProduct
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import ATTACKS, PRESETS, describe
from cosdefense.data import load as load_data
from cosdefense.data.partition import Dirichlet
from cosdefense.runs.experiment import Experiment, to_table, to_toml
from cosdefense.runs.experiment_file import from_table, load
from cosdefense.runs.prepare import build_model, dry_run

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "experiments").rglob("*.toml")), ROOT / "src" / "cosdefense" / "cli" / "demo.toml"]
# Only the arena reads these: they take attacks and defenses from another file, or are about tuning.
PARTIAL = (
    "tuning.toml",
    "tuned.toml",
    "full-participation.toml",
    "tabular.toml",
    "mnist-1000.toml",
    "mnist-1000-from-200.toml",
    "mnist-150-trials.toml",
)
FILES = [path for path in FILES if path.name not in PARTIAL]

TOML = """
name = "mine"
seeds = [3, 4]
[data]
dataset = "digits"
clients = 20
partition = { name = "dirichlet", alpha = 0.3 }
[model]
name = "mlp"
[training]
rounds = 7
lr = 1
[[attacks]]
name = "inner-product"
epsilon = 2
[[attacks]]
name = "none"
[[defenses]]
name = "krum"
contamination = 0.2
[[defenses]]
name = "multi-krum"
[[defenses]]
filters = [{ name = "clip", max_norm = 3 }, { name = "multi-krum", keep = "none" }]
aggregator = { name = "trimmed-mean" }
"""


def written(tmp_path: Path, text: str = TOML) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_becomes_real_objects(tmp_path: Path) -> None:
    experiment = load(written(tmp_path))
    assert experiment.seeds == (3, 4)
    assert experiment.data.partition == Dirichlet(0.3)
    assert experiment.training.lr == 1.0
    assert experiment.attacks[0].part == InnerProduct(2.0)
    assert experiment.defenses[0].part == get("krum", contamination=0.2)
    assert [entry.label for entry in experiment.defenses] == [
        "krum(contamination=0.2)", "multi-krum", "clip + multi-krum + trimmed-mean",
    ]  # fmt: skip
    assert dict(experiment.model) == {"name": "mlp", "hidden": 64}  # defaults are written out


def test_round_trip(tmp_path: Path) -> None:
    experiment = load(written(tmp_path))
    assert from_table(to_table(experiment)) == experiment
    assert load(written(tmp_path, to_toml(experiment))) == experiment


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_files_we_ship(path: Path) -> None:
    experiment = load(path)
    assert from_table(tomllib.loads(to_toml(experiment)), experiment.source) == experiment


TARGETED = {"backdoor", "constrain-and-scale", "dba", "edge-case", "neurotoxin", "optimized-trigger"}


@pytest.mark.slow
def test_the_grid_of_backdoors_is_complete() -> None:
    """Every attack with a trigger, and a stop, so that it is seen how long success lasts."""
    experiment = load(ROOT / "experiments" / "digits-backdoors.toml")
    assert {describe(entry.part)["name"] for entry in experiment.attacks} == {"none", *TARGETED}
    assert experiment.schedule.attack_stop is not None
    dry_run(experiment, load_data("digits"))


NOT_THERE = {"poisoned-buffers", "planning", "persistent"}


@pytest.mark.slow
def test_the_digits_grid_is_complete() -> None:
    """Every defense of the catalog against every attack that wants no particular answer, all of them buildable.

    Poisoned buffers need a model with BatchNorm, which this grid does not have. Planning and
    persistent take minutes a run.
    """
    path = ROOT / "experiments" / "digits-grid.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert {entry["name"] for entry in table["defenses"] if "name" in entry} == set(PRESETS)
    assert {entry["name"] for entry in table["attacks"]} == set(ATTACKS) - TARGETED - NOT_THERE
    dry_run(load(path), load_data("digits"))


def test_hooks_are_part_of_a_label() -> None:
    spelled = {"filters": [{"name": "clip"}], "hooks": [{"name": "fl-wbc"}]}
    experiment = from_table({"name": "x", "defenses": [{"name": "fedavg"}, {"hooks": [{"name": "fl-wbc"}]}, spelled]})
    assert [entry.label for entry in experiment.defenses] == ["fedavg", "mean + fl-wbc", "clip + mean + fl-wbc"]
    assert from_table(to_table(experiment)) == experiment


def test_the_grid(tmp_path: Path) -> None:
    cells = list(load(written(tmp_path)).cells())
    assert len(cells) == 2 * 3 * 2
    assert len({cell.fingerprint for cell in cells}) == len({cell.folder(tmp_path) for cell in cells}) == 12
    assert all(len(cell.attacks) == len(cell.defenses) == len(cell.seeds) == 1 for cell in cells)


def test_the_fingerprint_follows_the_numbers_not_the_names(tmp_path: Path) -> None:
    one = load(written(tmp_path))
    assert load(written(tmp_path), ["name=other"]).fingerprint == one.fingerprint
    assert load(written(tmp_path), ["training.max_update_memory=0.5"]).fingerprint == one.fingerprint
    assert load(written(tmp_path), ["training.fast_convolutions=true"]).fingerprint == one.fingerprint
    assert (
        load(written(tmp_path, TOML.replace('name = "none"', 'name = "none"\nlabel = "peace"'))).fingerprint
        == one.fingerprint
    )
    explicit = TOML.replace('name = "multi-krum"', 'name = "multi-krum"\ncontamination = 0.3', 1)
    assert load(written(tmp_path, explicit)).fingerprint == one.fingerprint  # a default, spelled out
    changes = (
        "training.rounds=8",
        "training.bfloat16=true",
        "training.fast_convolutions=false",
        "seeds=[3]",
        "data.malicious=0.1",
        "schedule.attack_stop=5",
        "schedule.attack_period=5",
        "schedule={attack_growth=2.0, attack_scale_end=5.0}",
        "model.hidden=65",
    )
    for change in changes:
        assert load(written(tmp_path), [change]).fingerprint != one.fingerprint, change


def test_overrides(tmp_path: Path) -> None:
    changes = ["training.rounds=9", "data.dataset=mnist", 'model={name="paper-cnn"}', "seeds=[1]"]
    experiment = load(written(tmp_path), changes)
    assert experiment.training.rounds == 9
    assert experiment.data.dataset == "mnist"
    assert dict(experiment.model) == {"name": "paper-cnn"}
    assert experiment.seeds == (1,)


MISTAKES = [
    ("trainig = 3", "key 'trainig' is unknown: did you mean 'training'?"),
    ("[training]\nround = 3", "training: option 'round' is unknown: did you mean 'rounds'?"),
    ("[training]\nrounds = 'ten'", "training.rounds must be a whole number, got 'ten'"),
    ("[training]\nrounds = 1.5", "training.rounds must be a whole number, got 1.5"),
    ("[training]\nrounds = true", "training.rounds must be a whole number, got True"),
    ("[training]\nrounds = 0", "training: rounds must be at least 1, got 0"),
    ("[training]\nlr = -1", "training: lr must be positive and finite, got -1"),
    ("[training]\nsampled = 200", "training.sampled must be at most 100 clients, got 200"),
    ("[data]\ndataset = 'mnits'", "dataset 'mnits' is unknown: did you mean 'mnist'?"),
    ("[data]\nmalicious = 1.0", "data: malicious must be in [0, 1), got 1.0"),
    ("[data]\npartition = 'iid'", "data.partition must be a table, got 'iid'"),
    ("[data.partition]\nname = 'iidd'", "partition 'iidd' is unknown: did you mean 'iid'?"),
    ("[data.partition]\nname = 'iid'\nq = 1", "partition iid takes no options, got 'q'"),
    (
        "[data.partition]\nq = 1",
        "data.partition needs a name: one of by-client, dirichlet, iid, label-skew, quantity-skew, shards",
    ),
    ("[model]\nname = 'resnet'", "model 'resnet' is unknown: did you mean 'resnet18'?"),
    ("[model]\nname = 'resnet18'\nnorm = 'layer'", "model resnet18.norm 'layer' is unknown: choose from batch, group"),
    ("[model]\nname = 'mlp'\nshape = 3", "model mlp: option 'shape' is unknown: choose from hidden"),
    ("[schedule]\nattack_start = -3", "schedule: rounds count from 0, got -3"),
    (
        "[[attacks]]\nname = 'ipm'",
        "attack 'ipm' is unknown: choose from adapsim, adaptive, alie, backdoor, camouflage, constrain-and-scale, dba,",
    ),
    ("[[attacks]]\nepsilon = 1", "attack needs a name"),
    (
        "[[attacks]]\nname = 'inner-product'\neps = 1",
        "attack inner-product: option 'eps' is unknown: did you mean 'epsilon'?",
    ),
    (
        "[[attacks]]\nname = 'label-flip'\nsource = 1",
        "attack label-flip: LabelFlip needs both source and target, or neither",
    ),
    (
        "[[defenses]]\nname = 'krum'\ncontamination = 0.7",
        "defense krum: Krum.contamination must be in [0, 0.5), got 0.7",
    ),
    (
        "[[defenses]]\nname = 'krum'\n[[defenses]]\nname = 'krum'",
        "defenses holds 'krum' twice; give one of them another label",
    ),
    ("[[defenses]]\nfilter = []", "defense: option 'filter' is unknown: did you mean 'filters'?"),
    ("[[defenses]]\nname = 'no.such:Thing'", "defense 'no.such:Thing' cannot be imported"),
    (
        "[[defenses]]\nname = 'cosdefense.attacks:Noise'",
        "must be a subclass of Defense, or a function annotated to return one (-> Defense), got the class Noise",
    ),
    ("[[attacks]]\nname = 'adaptive'\ndefense = 'pip._internal:main'", "got a function that returns <class 'int'>"),
    ("[[defenses]]\nfilters = [{name = 'cosdefense:Filter'}]", "filter 'cosdefense:Filter' is abstract"),
    ("[data.partition]\nname = 'sys:exit'", "got builtin_function_or_method"),
    ("[model]\nname = 'sys:exit'", "got builtin_function_or_method"),
    ("defenses = 3", "defenses must be a list, got 3"),
    ("seeds = []", "seeds needs at least one entry"),
    ("seeds = [1, 1]", "seeds holds 1 twice"),
    ("seeds = ['a']", "seeds[0] must be a whole number, got 'a'"),
    ("name = '../up'", "name becomes a folder"),
    (f"name = '{'x' * 101}'", "name becomes a folder"),
    ("[training]\nlr = inf", "training.lr must be a finite number, got inf"),
    ("[training]\nweight_decay = nan", "training.weight_decay must be a finite number, got nan"),
    ("[[attacks]]\nname = 'inner-product'\nepsilon = inf", "epsilon must be a finite number, got inf"),
    ("[[defenses]]\nfilters = 3", "defense.filters must be a list, got 3"),
    ("[[defenses]]\nfilters = [3]", "defense.filters[0] must be a table, got 3"),
    ("[[defenses]]\nname = ':x'", "defense ':x' cannot be imported"),
    ("[[defenses]]\nname = '..x:y'", "defense '..x:y' cannot be imported"),
    (
        "[[defenses]]\nname = 'math:pi'",
        "'math:pi' must be a subclass of Defense, or a function annotated to return one (-> Defense), got float",
    ),
    ("[[defenses]]\nname = 3", "defense.name must be a string, got 3"),
    ("[[defenses]]\nname = 'krum'\nlabel = 'a'\n[[defenses]]\nname = 'krum'\nlabel = 'b'", "'a' and 'b' are the same"),
    ("[model]\nname = 'torch.nn:Linear'", "model torch.nn:Linear must take shape and n_outputs, got in_features"),
    ("data = 3", "data must be a table, got 3"),
    ("x = ", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "complaint"), MISTAKES, ids=[complaint[:40] for _, complaint in MISTAKES])
def test_mistakes_are_one_clear_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value).strip() or "TOML" in complaint


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("rounds", "--set needs key=value, got 'rounds'"),
        ("name.first=3", "--set name.first: 'name' is not a table"),
        ("training.rouns=3", "did you mean 'rounds'?"),
    ],
)
def test_override_mistakes(tmp_path: Path, change: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(written(tmp_path), [change])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_defaults_work() -> None:
    assert len(list(Experiment("plain").cells())) == 1


PARTS = """
from dataclasses import dataclass
import torch
from cosdefense import Defense, Filter, Judgment
from cosdefense.aggregators import Mean
from cosdefense.training.models import mlp

@dataclass(frozen=True)
class Mine(Filter):
    share: float = {share}

    def __call__(self, cohort, state):
        return Judgment(torch.zeros_like(cohort.weights), torch.ones_like(cohort.weights)), state

def defense() -> Defense:
    return Defense((Mine(),), Mean())

def network(shape: tuple[int, ...], n_outputs: int, hidden: int = 8) -> torch.nn.Module:
    return mlp(shape, n_outputs, hidden)
"""


def experiment_with_parts(folder: Path, share: float) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(PARTS.format(share=share))
    (folder / "x.toml").write_text('[model]\nname = "mine:network"\n[[defenses]]\nname = "mine:defense"\n')
    return folder / "x.toml"


def test_two_experiments_have_each_their_own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file beside the experiment comes before a module of that name elsewhere, and sys.path is left alone."""
    experiment_with_parts(tmp_path / "elsewhere", 0.9)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    path, digits = list(sys.path), load_data("digits")
    for name, share in (("one", 0.25), ("two", 0.5)):
        experiment = load(experiment_with_parts(tmp_path / name, share))
        table = to_table(experiment)
        assert table["defenses"][0]["filters"] == [{"name": "mine:Mine", "share": share}]  # as its file names it
        assert table["model"] == {"name": "mine:network", "hidden": 8}
        assert from_table(table, experiment.source) == experiment
        assert isinstance(build_model(experiment, digits), torch.nn.Module)
    assert sys.path == path
    assert "mine" not in sys.modules


def test_a_changed_part_is_read_again(tmp_path: Path) -> None:
    before = load(experiment_with_parts(tmp_path, 0.25))
    after = load(experiment_with_parts(tmp_path, 0.125))
    assert to_table(after)["defenses"][0]["filters"] == [{"name": "mine:Mine", "share": 0.125}]
    assert before.fingerprint != after.fingerprint


CALLED = """
from pathlib import Path
from cosdefense import Attack, Filter

def write(path: str = "called") -> None:
    Path(path).touch()

class Write:
    def __init__(self) -> None:
        write()
"""


@pytest.mark.parametrize(
    "table",
    [
        "[[defenses]]\nname = '{}'",
        "[[defenses]]\nfilters = [{{name = '{}'}}]",
        "[[defenses]]\naggregator = {{name = '{}'}}",
        "[[defenses]]\nhooks = [{{name = '{}'}}]",
        "[[attacks]]\nname = '{}'",
        "[[attacks]]\nname = 'adaptive'\ndefense = '{}'",
        "[data.partition]\nname = '{}'",
        "[model]\nname = '{}'",
    ],
)
def test_what_is_not_made_for_the_purpose_is_never_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writes.py").write_text(CALLED)
    for name in ("writes:write", "writes:Write", "os:abort"):
        with pytest.raises(ConfigError, match=r"must be a subclass of \w+, or a function annotated to return one"):
            load(written(tmp_path, table.format(name)))
        assert not (tmp_path / "called").exists()


RESERVED = """
from dataclasses import dataclass
from cosdefense import Attack, Defense, get
from cosdefense.training.models import nn

@dataclass(frozen=True)
class Named(Attack):
    name: str = "x"

def labeled(label: str = "x") -> Defense:
    return get("fedavg")

def network(shape: tuple[int, ...], n_outputs: int, name: str = "x") -> nn.Module: ...
"""


@pytest.mark.parametrize(
    ("table", "option"),
    [
        ("[[attacks]]\nname = 'reserved:Named'", "name"),
        ("[[defenses]]\nname = 'reserved:labeled'", "label"),
        ("[model]\nname = 'reserved:network'", "name"),
    ],
)
def test_an_option_that_a_table_cannot_give_is_refused(tmp_path: Path, table: str, option: str) -> None:
    (tmp_path / "reserved.py").write_text(RESERVED)
    with pytest.raises(ConfigError, match=f"has an option '{option}', which a table cannot hold: rename it"):
        load(written(tmp_path, table))


def test_a_part_with_such_an_option_cannot_be_described() -> None:
    @dataclass(frozen=True)
    class Named(Attack):
        name: str = "x"

    with pytest.raises(ConfigError, match="Named has an option 'name', which a table cannot hold: rename it"):
        describe(Named())
