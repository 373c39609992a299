"""Every defense stops an attack it was made for, which breaks the plain mean; and fails where it is said to fail."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import nn

from cosdefense import Attack, get
from cosdefense.attacks import (
    ALIE,
    Adaptive,
    Backdoor,
    ExplicitBoosting,
    InnerProduct,
    KrumPoisoning,
    LabelFlip,
    Mimic,
    MinMax,
    MinSum,
    Noise,
    SignFlip,
    TrimmedMeanPoisoning,
)
from cosdefense.data import load
from cosdefense.hooks import AdversarialTraining
from cosdefense.simulation.evaluation import Evaluation, evaluate
from cosdefense.simulation.loop import Round, Snapshot, simulate
from cosdefense.simulation.schedule import Schedule
from cosdefense.simulation.world import World
from cosdefense.training.server_data import ServerData
from cosdefense.training.task import Task
from worlds import digits_world

pytestmark = pytest.mark.slow  # trains for many rounds

Options = dict[str, float | int | None]


@dataclass(frozen=True)
class Outcome:
    """How a federation ended, and whom its defense rejected."""

    found: Evaluation
    liars_rejected: float
    honest_rejected: float

    @property
    def accuracy(self) -> float:
        return self.found.accuracy

    @property
    def success(self) -> float:
        assert self.found.attack_success is not None
        return self.found.attack_success

    @property
    def recall(self) -> float:
        assert self.found.source_recall is not None
        return self.found.source_recall


def outcome(
    world: World,
    attack: Attack,
    name: str,
    *,
    rounds: int,
    batch: int,
    sampled: int = 10,
    local_steps: int = 1,
    schedule: Schedule = Schedule(),
    adversary: AdversarialTraining | None = None,
    start: Snapshot | None = None,
    options: Options | None = None,
) -> Outcome:
    """`start` is a model that honest clients have trained for a while."""
    defense = get(name, **options or {})
    simulation = simulate(
        world, attack, defense, rounds=rounds, sampled=sampled, batch=batch, seed=0, local_steps=local_steps,
        schedule=schedule, resume=start and replace(start, defense_state=defense.init()),
    )  # fmt: skip
    history: list[Round] = list(simulation)
    liars = torch.cat([round_.malicious for round_ in history])
    rejected = torch.cat([round_.verdict.weights == 0 for round_ in history])
    digits = load("digits")
    params = history[-1].after.params
    found = evaluate(world.task, params, digits.test_images, digits.test_labels, attack, 10, adversary)
    shares = [float(rejected[who].float().mean()) if bool(who.any()) else 0.0 for who in (liars, ~liars)]
    return Outcome(found, *shares)


def trained(world: World, rounds: int, batch: int, sampled: int = 10, local_steps: int = 1) -> Snapshot:
    """Where honest clients and the plain mean have come to."""
    settings = {"rounds": rounds, "sampled": sampled, "batch": batch, "seed": 0, "local_steps": local_steps}
    *_, last = simulate(world, Attack(), get("fedavg"), **settings)  # type: ignore[arg-type]
    return last.after


@cache
def trusted_world(malicious: float, q: float) -> World:
    """The server holds a hundred samples and trains on as many at a time as its clients."""
    world = digits_world(trusted=100, shared=8, malicious=malicious, q=q)
    assert isinstance(world.trusted_data, ServerData)
    return replace(world, trusted_data=replace(world.trusted_data, batch=28))


# RFFL


def test_rffl_removes_sign_flippers() -> None:
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    plain, saved = (outcome(world, SignFlip(), name, rounds=60, batch=32, sampled=20) for name in ("fedavg", "rffl"))
    assert plain.accuracy < 0.5
    assert saved.accuracy > 0.75
    assert saved.liars_rejected > 0.8
    assert saved.honest_rejected == 0


def test_rffl_works_with_sampled_clients_here() -> None:
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    plain, saved = (outcome(world, SignFlip(), name, rounds=120, batch=32, sampled=8) for name in ("fedavg", "rffl"))
    assert saved.accuracy > plain.accuracy + 0.1
    assert saved.liars_rejected > 0.7
    assert saved.honest_rejected == 0


def test_rffl_believes_colluders() -> None:
    """Reputation is agreement with the aggregate: liars who all send the same long vector are the aggregate."""
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    fooled = outcome(world, InnerProduct(), "rffl", rounds=25, batch=32, sampled=20)
    assert fooled.accuracy < 0.2
    assert fooled.honest_rejected > 0.5
    assert fooled.liars_rejected < 0.1


# FoolsGold


def test_foolsgold_stops_sybils() -> None:
    """Even a majority of them; at the price of honest clients who happen to be alike."""
    world = digits_world(n_clients=20, malicious=0.6)
    attack = LabelFlip(source=1, target=7)
    plain, saved = (outcome(world, attack, name, rounds=60, batch=32, sampled=20) for name in ("fedavg", "foolsgold"))
    assert plain.recall < 0.6
    assert saved.recall > 0.85
    assert saved.liars_rejected > 0.9


def test_foolsgold_is_defenseless_against_a_single_attacker() -> None:
    world = digits_world(n_clients=20, malicious=0.05)
    fooled = outcome(world, SignFlip(30.0), "foolsgold", rounds=30, batch=32, sampled=20)
    assert fooled.accuracy < 0.2
    early = next(iter(simulate(world, SignFlip(30.0), get("foolsgold"), rounds=1, sampled=20, batch=32, seed=0)))
    assert float(early.verdict.weights[early.malicious]) > 0


# Rules with data at the server


@pytest.mark.parametrize("name", ["fltrust", "bygars", "bygars++", "diversefl"])
def test_server_data_survive_a_malicious_majority(name: str) -> None:
    """Sixty percent flip their sign."""
    world = trusted_world(malicious=0.6, q=0.1)
    assert outcome(world, SignFlip(), name, rounds=70, batch=28).accuracy > 0.6


@pytest.mark.parametrize("name", ["fedavg", "median"])
def test_rules_that_count_votes_do_not(name: str) -> None:
    world = trusted_world(malicious=0.6, q=0.1)
    assert outcome(world, SignFlip(), name, rounds=70, batch=28).accuracy < 0.25


@pytest.mark.parametrize("name", ["bygars", "bygars++"])
def test_bygars_uses_sign_flippers(name: str) -> None:
    """Turned round again they are worth as much as the honest: the model is the one without any attack."""
    world = trusted_world(malicious=0.6, q=0.1)
    attacked, clean = (outcome(world, attack, name, rounds=20, batch=28) for attack in (SignFlip(5.0), Attack()))
    assert clean.accuracy > 0.4
    assert attacked.accuracy == pytest.approx(clean.accuracy, abs=0.02)
    assert attacked.liars_rejected == 0


@pytest.mark.parametrize("name", ["fltrust", "bygars", "bygars++"])
def test_a_majority_cannot_spoil_batch_norm(name: str) -> None:
    """Liars who climb at every step send honest statistics beside reversed weights."""
    world = trusted_world(malicious=0.6, q=0.1)
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    torch.manual_seed(0)
    task = Task.of(nn.Sequential(*layers), mean=world.task.mean, std=world.task.std)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    world = replace(world, task=task, trusted_data=replace(server, task=task))
    assert outcome(world, SignFlip(every_step=True), name, rounds=40, batch=28).accuracy > 0.7


def test_fltrust_is_as_good_as_its_data() -> None:
    world = trusted_world(malicious=0.6, q=0.1)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    biased = server.held[world.labels[server.held] < 2]  # two classes of ten
    world = replace(world, trusted_data=replace(server, held=biased))
    assert outcome(world, SignFlip(), "fltrust", rounds=80, batch=28).accuracy < 0.3


def test_sageflow_stops_liars_once_the_model_has_an_opinion() -> None:
    world = trusted_world(malicious=0.3, q=0.5)
    start = trained(world, rounds=60, batch=28)
    for attack in (SignFlip(5.0), Noise()):
        plain, saved = (
            outcome(world, attack, name, rounds=90, batch=28, start=start) for name in ("fedavg", "sageflow")
        )
        assert plain.accuracy < 0.25
        assert saved.accuracy > 0.7


def test_sageflow_cannot_help_a_model_that_knows_nothing() -> None:
    """In the first rounds nobody's model is better than anybody else's."""
    world = trusted_world(malicious=0.3, q=0.5)
    assert outcome(world, SignFlip(5.0), "sageflow", rounds=80, batch=28).accuracy < 0.3


def test_diversefl_knows_unusual_clients_from_liars() -> None:
    world = trusted_world(malicious=0.6, q=0.5)  # clients with very different data
    saved = outcome(world, SignFlip(), "diversefl", rounds=80, batch=28)
    assert saved.accuracy > 0.7
    assert saved.liars_rejected > 0.95
    assert saved.honest_rejected < 0.1


def test_diversefl_believes_the_sample() -> None:
    """Who lies about the labels in the sample too, is guided to what it sends."""
    world = digits_world(shared=8)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    labels = world.labels.clone()
    for client in world.malicious.nonzero().flatten().tolist():
        labels[server.shared[client]] = 9 - labels[server.shared[client]]
    honest_sample = outcome(world, LabelFlip(), "diversefl", rounds=40, batch=8)
    world = replace(world, trusted_data=replace(server, labels=labels))
    lying_sample = outcome(world, LabelFlip(), "diversefl", rounds=40, batch=8)
    assert honest_sample.liars_rejected > 0.5
    assert lying_sample.liars_rejected < 0.2


# Clipping and noise

REPLACEMENT = Backdoor(fraction=0.5, scale=None)
CLIPPED: dict[str, Options] = {
    "norm-clipping": {"max_norm": 0.3},
    "weak-dp": {"max_norm": 0.3, "std": 0.005},
    "central-dp": {"max_norm": 0.3, "noise_multiplier": 0.2},
}


@cache
def before_replacement() -> tuple[World, Snapshot]:
    """Twenty clients, two of them malicious, and a model that they have trained honestly for 38 rounds."""
    world = digits_world(n_clients=20, malicious=0.1)
    return world, trained(world, rounds=38, batch=8, sampled=20, local_steps=5)


@cache
def replaced(name: str, rounds: int, **options: float) -> Outcome:
    """Four rounds of model replacement, and what is left of it after some more."""
    world, start = before_replacement()
    return outcome(
        world, REPLACEMENT, name, rounds=38 + rounds, batch=8, sampled=20, local_steps=5, start=start,
        schedule=Schedule(attack_stop=42), options=dict(options),
    )  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_stops_model_replacement(name: str) -> None:
    saved = replaced(name, 4, **CLIPPED[name])
    assert replaced("fedavg", 4).success > 0.6
    assert saved.success < 0.05
    assert saved.accuracy > 0.85


def test_clipping_does_not_stop_patient_attackers() -> None:
    """Who stays within the norm and comes every round gets there."""
    world = digits_world(malicious=0.2)
    fooled = outcome(world, Backdoor(), "norm-clipping", rounds=100, batch=8)
    assert fooled.success > 0.8
    assert fooled.accuracy > 0.8


# PCA clustering


def test_pca_clustering_stops_label_flips() -> None:
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    plain, saved = (
        outcome(world, LabelFlip(), name, rounds=8, batch=16, sampled=20, local_steps=5)
        for name in ("fedavg", "pca-clustering")
    )
    assert saved.accuracy > plain.accuracy + 0.05
    assert saved.liars_rejected > 0.9
    assert saved.honest_rejected < 0.1


def test_pca_clustering_takes_the_majority_for_honest() -> None:
    world = digits_world(n_clients=20, malicious=0.6, q=0.1, lr=0.05)
    fooled = outcome(world, LabelFlip(1, 7), "pca-clustering", rounds=18, batch=16, sampled=20, local_steps=5)
    assert fooled.success > 0.5
    assert fooled.honest_rejected > fooled.liars_rejected + 0.3


# The clients' side


def test_fl_wbc_makes_a_backdoor_fade() -> None:
    """It does not keep the attack out; eighteen rounds later less of it is left than without."""
    plain, saved = replaced("fedavg", 22), replaced("fl-wbc", 22, strength=0.4)
    assert plain.success > 0.4
    assert saved.success < 0.25
    assert saved.accuracy > 0.85


def test_fat_hardens_against_adversarial_images() -> None:
    world, adversary = digits_world(lr=0.2), AdversarialTraining(0.1)
    start = trained(world, rounds=60, batch=8)
    plain, saved = (
        outcome(world, Attack(), name, rounds=100, batch=8, start=start, adversary=adversary, options=options).found
        for name, options in (("fedavg", None), ("fat", Options(steps=3)))
    )
    assert plain.adversarial_accuracy is not None
    assert saved.adversarial_accuracy is not None
    assert saved.adversarial_accuracy > plain.adversarial_accuracy + 0.08
    assert plain.adversarial_accuracy < plain.accuracy - 0.3
    assert saved.accuracy > 0.8


@pytest.mark.parametrize("name", ["fl-wbc", "fat"])
def test_client_side_defenses_do_not_keep_liars_out(name: str) -> None:
    options: Options = {"steps": 1} if name == "fat" else {}
    fooled = outcome(digits_world(), InnerProduct(), name, rounds=30, batch=8, local_steps=2, options=options)
    assert fooled.accuracy < 0.2


# Attacks: each against the mean, and against the rule it was made for


@cache
def honest(name: str) -> float:
    return outcome(digits_world(), Attack(), name, rounds=80, batch=8).accuracy


@pytest.mark.parametrize(
    ("attack", "name", "loss_of_accuracy"),
    [
        (TrimmedMeanPoisoning(), "fedavg", 0.5),
        (TrimmedMeanPoisoning(), "trimmed-mean", 0.4),
        (TrimmedMeanPoisoning(), "median", 0.4),
        (TrimmedMeanPoisoning("partial"), "fedavg", 0.5),
        (TrimmedMeanPoisoning("partial"), "trimmed-mean", 0.3),
        (KrumPoisoning(), "fedavg", 0.5),
        (KrumPoisoning(), "krum", 0.5),
        (KrumPoisoning(knowledge="partial"), "fedavg", 0.1),
        (KrumPoisoning(knowledge="partial"), "krum", 0.5),
        (ExplicitBoosting(), "fedavg", 0.5),
        (Noise(additive=True), "fedavg", 0.3),
        (SignFlip(5.0, every_step=True), "fedavg", 0.5),
        (ALIE(z=1.5), "fedavg", 0.1),
        (ALIE(z=1.5), "krum", 0.3),
        (MinMax(), "fedavg", 0.4),
        (MinMax(), "krum", 0.4),
        (MinMax(knowledge="partial"), "multi-krum", 0.3),
        (MinSum(), "multi-krum", 0.4),
        (Mimic(), "krum", 0.1),
    ],
    ids=lambda value: str(value)[:50],
)
def test_untargeted_attacks(attack: Attack, name: str, loss_of_accuracy: float) -> None:
    attacked = outcome(digits_world(), attack, name, rounds=80, batch=8)
    assert attacked.accuracy < honest(name) - loss_of_accuracy


@pytest.mark.parametrize("name", ["cosdefense", "multi-krum"])
def test_adaptive_attackers_undo_what_was_learned(name: str) -> None:
    """Twenty rounds are enough: they ask the defense thirty times in each of them."""
    world, start = learned()
    attacked, honest = (
        outcome(world, attack, name, rounds=100, batch=8, start=start) for attack in (Adaptive(trials=30), Attack())
    )
    assert attacked.accuracy < honest.accuracy - 0.5


@cache
def learned() -> tuple[World, Snapshot]:
    world = digits_world()
    return world, trained(world, rounds=80, batch=8)


def test_krum_picks_the_rows_made_for_it() -> None:
    """A noisier attack than the tailored one is never picked; the tailored one nearly always."""
    tailored = outcome(digits_world(), KrumPoisoning(), "krum", rounds=30, batch=8)
    assert tailored.liars_rejected < 0.15
    assert outcome(digits_world(), SignFlip(5.0), "krum", rounds=30, batch=8).liars_rejected > 0.95


def test_backdoors_open_and_honest_images_notice_nothing() -> None:
    world = digits_world(malicious=0.2)
    plain, attacked = (outcome(world, attack, "fedavg", rounds=100, batch=8).found for attack in (Attack(), Backdoor()))
    never = evaluate(
        world.task, world.task.initial(), load("digits").test_images, load("digits").test_labels, Backdoor(), 10
    )
    assert attacked.attack_success is not None
    assert never.attack_success is not None
    assert attacked.attack_success > 0.8
    assert never.attack_success < 0.5
    assert attacked.accuracy > plain.accuracy - 0.1
