"""The paper's tables, figures and claims: which runs each of them needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...catalog.options import ConfigError, unknown_name_error
from ...runs.experiment import Experiment
from ...runs.experiment_file import load
from ...runs.packed_records import compact
from ...runs.records import RunRecord
from ..study import experiments_folder

PAPERS_DEFENSES = ("Krum", "Clipping-Median", "CosDefense")  # that its figures 4 and 6 show


@dataclass(frozen=True)
class PaperPlan:
    """The runs behind some tables and figures."""

    runs: tuple[Experiment, ...]  # federations
    drift: tuple[Experiment, ...]  # clients that train without averaging, for figure 1


@dataclass(frozen=True)
class Ingredient:
    """Runs of one file under experiments/paper: some of its keys changed, all of its grid or some."""

    file: str
    changes: tuple[str, ...] = ()
    attacks: tuple[str, ...] | None = None  # labels; None: all
    defenses: tuple[str, ...] | None = None

    def list_runs(self, experiment: Experiment) -> Iterator[Experiment]:
        for cell in experiment.cells():
            (attack,), (defense,) = cell.attacks, cell.defenses
            wanted = attack.label in (self.attacks or (attack.label,))
            wanted &= defense.label in (self.defenses or (defense.label,))
            # The authors' Krum is given the malicious clients; without an attack there are none.
            if wanted and (attack.label, defense.label) != ("none", "Krum"):
                yield cell


def _attackers(share: float) -> Ingredient:
    return Ingredient("attackers", (f"data.malicious={share}", f"name=paper-attackers-{share:.0%}".rstrip("%")))


def _skew(q: float) -> Ingredient:
    return Ingredient("skew", (f"data.partition.q={q}", f"name=paper-skew-{q}"))


MAIN = (
    Ingredient("mnist"),
    Ingredient("fashion-mnist"),
    Ingredient("cifar-10"),
    Ingredient("cifar-10-counters"),
)
DEFAULT = Ingredient("mnist", attacks=("inner product",), defenses=PAPERS_DEFENSES)  # 30 % attackers, q = 0.5
FIGURES: dict[str, tuple[Ingredient, ...]] = {
    "table3": MAIN,
    "figure1": (),  # its experiment is no federation: DRIFT
    "figure2": (Ingredient("scores"),),
    "figure3": MAIN,
    "figure4": (_attackers(0.1), _attackers(0.2), DEFAULT, _attackers(0.4)),
    "figure6": (_skew(0.1), _skew(0.3), DEFAULT),
}
CLAIMS: dict[str, tuple[Ingredient, ...]] = {  # what the paper says without a table or figure
    "layers": (Ingredient("layers"),),
    "aggregators": (Ingredient("aggregators"),),
    "backdoors": (Ingredient("backdoors"),),
}
DRIFT = Ingredient("drift")
ALL, ALL_CLAIMS = "all", "claims"
WHOLE = ("paper-scores",)  # experiments whose figures need every round
PAPERS_DATASETS = ("mnist", "fashion-mnist", "cifar-10")

# The same questions for a computer without a GPU: a small network, half the rounds, smaller batches, one seed. The
# network has one hidden layer: a small convolutional one took twice the time and did not recover from the attacked
# rounds, on CIFAR-10 at a rate at which it learns, on Fashion-MNIST with some seeds.
QUICK_MODEL = ("seeds=[0]", "model={name='mlp', hidden=64}", "training.batch=32", "training.lr=0.03")
QUICK_ROUNDS = ("training.rounds=500", "training.evaluate_every=20", "schedule.attack_start=100")
QUICK_SCHEDULE = (*QUICK_MODEL, *QUICK_ROUNDS, "schedule.defense_start=100")
QUICK = {
    "mnist": QUICK_SCHEDULE,
    "fashion-mnist": QUICK_SCHEDULE,
    "cifar-10": (  # four times the pixels: fewer neurons, rounds and evaluations
        *QUICK_SCHEDULE,
        "model.hidden=32",
        "training.rounds=300",
        "training.evaluate_every=30",
        "training.batch_statistics=false",
    ),
    "attackers": QUICK_SCHEDULE,
    "skew": QUICK_SCHEDULE,
    "scores": (
        *QUICK_MODEL,
        *QUICK_ROUNDS,
        "defenses=[{label='CosDefense', name='authors:traced_cosdefense', patience=100}]",
    ),
    "layers": (
        *QUICK_SCHEDULE,
        "defenses=[{label='first layer', name='cosdefense', layer='1.weight'}, {label='last layer', name='cosdefense'},"
        " {label='whole update', name='authors:whole_cosdefense'}]",  # the network has two layers
    ),
    "aggregators": QUICK_SCHEDULE,
    "backdoors": (*QUICK_SCHEDULE, "training.rounds=300"),
    # Figure 1 compares layers, so this network has three; in one with two, the first drifts apart more than the last.
    "drift": ("seeds=[0]", "model={name='small-cnn', width=4}", "training.batch=16", "training.lr=0.05"),
}  # the counters of BatchNorm need a network that has some


def plan(
    wanted: Sequence[str], *, datasets: Sequence[str] = (), n_seeds: int | None = None, quick: bool = False
) -> PaperPlan:
    """The runs behind these tables and figures, each once."""
    for name in wanted:
        if name not in (known := (*FIGURES, ALL, *CLAIMS, ALL_CLAIMS)):
            raise unknown_name_error("table, figure or claim", name, known)
    for name in datasets:
        if name not in PAPERS_DATASETS:
            raise unknown_name_error("dataset", name, PAPERS_DATASETS)
    if n_seeds is not None and n_seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {n_seeds}")
    several = {ALL: tuple(FIGURES), ALL_CLAIMS: tuple(CLAIMS)}
    names = list(dict.fromkeys(name for given in wanted for name in several.get(given, (given,))))
    parts = FIGURES | CLAIMS

    def list_runs(ingredients: Iterable[Ingredient]) -> tuple[Experiment, ...]:
        runs: dict[Path, Experiment] = {}
        for ingredient in dict.fromkeys(ingredients):
            if quick and ingredient.file not in QUICK:
                continue
            changes = [*ingredient.changes, *(QUICK[ingredient.file] if quick else ())]
            if n_seeds is not None:
                changes.append(f"seeds={list(range(n_seeds))}")
            experiment = load(files() / f"{ingredient.file}.toml", changes)
            if not datasets or experiment.data.dataset in datasets:
                for run in ingredient.list_runs(experiment):
                    runs.setdefault(run.folder(Path()), run)
        return tuple(runs.values())

    planned = PaperPlan(
        list_runs(part for name in names for part in parts[name]), list_runs([DRIFT] if "figure1" in names else [])
    )
    if not planned.runs and not planned.drift:
        raise ConfigError(f"{', '.join(wanted)} needs no run on {', '.join(datasets)}")
    return planned


def compact_run(run: RunRecord) -> RunRecord:
    """What is kept of a run."""
    return compact(run, whole_rounds=run.experiment in WHOLE)


def files() -> Path:
    """Where the paper's experiments lie."""
    return experiments_folder("paper")
