"""Every defense stops an attack that breaks the plain mean, and fails where its documentation says so.

Most worlds have an MLP, which trains fast. Where an attack does not break it, the world has a small CNN.
"""

from __future__ import annotations

from collections.abc import Callable
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
from shapes import THOROUGH
from worlds import digits_world, mlp_world

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("batched_training")]  # trains for many rounds

Options = dict[str, float | int | None]


@dataclass(frozen=True)
class Outcome:
    """The model after the last round, and the shares of malicious and honest clients that were rejected."""

    evaluation: Evaluation
    malicious_rejected: float
    honest_rejected: float

    @property
    def accuracy(self) -> float:
        return self.evaluation.accuracy

    @property
    def success(self) -> float:
        assert self.evaluation.attack_success is not None
        return self.evaluation.attack_success

    @property
    def recall(self) -> float:
        assert self.evaluation.source_recall is not None
        return self.evaluation.source_recall


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
    """Simulate and evaluate. `start`: a snapshot of honest training, to attack from there."""
    defense = get(name, **options or {})
    simulation = simulate(
        world, attack, defense, rounds=rounds, sampled=sampled, batch=batch, seed=0, local_steps=local_steps,
        schedule=schedule, resume=start and replace(start, defense_state=defense.init()),
    )  # fmt: skip
    history: list[Round] = list(simulation)
    malicious = torch.cat([round_.malicious for round_ in history])
    rejected = torch.cat([round_.verdict.weights == 0 for round_ in history])
    digits = load("digits")
    params = history[-1].after.params
    evaluation = evaluate(world.task, params, digits.test_inputs, digits.test_targets, attack, 10, adversary)
    shares = [float(rejected[who].float().mean()) if bool(who.any()) else 0.0 for who in (malicious, ~malicious)]
    return Outcome(evaluation, *shares)


def train_honestly(world: World, rounds: int, batch: int, sampled: int = 10, local_steps: int = 1) -> Snapshot:
    """A snapshot after `rounds` of honest training with the plain mean."""
    settings = {"rounds": rounds, "sampled": sampled, "batch": batch, "seed": 0, "local_steps": local_steps}
    *_, last = simulate(world, Attack(), get("fedavg"), **settings)  # type: ignore[arg-type]
    return last.after


@cache
def trusted_world(malicious: float, q: float, make: Callable[..., World] = mlp_world) -> World:
    """A world whose server holds a hundred samples and trains with batches as large as its clients'."""
    world = make(trusted=100, shared=8, malicious=malicious, q=q)
    assert isinstance(world.trusted_data, ServerData)
    return replace(world, trusted_data=replace(world.trusted_data, batch=28))


# RFFL


def test_rffl_removes_sign_flippers() -> None:
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    plain, defended = (outcome(world, SignFlip(), name, rounds=50, batch=32, sampled=20) for name in ("fedavg", "rffl"))
    assert plain.accuracy < 0.5
    assert defended.accuracy > 0.75
    assert defended.malicious_rejected > 0.8
    assert defended.honest_rejected == 0


def test_rffl_works_with_sampled_clients() -> None:
    world = digits_world(n_clients=20, malicious=0.3, q=0.1)
    plain, defended = (outcome(world, SignFlip(), name, rounds=90, batch=32, sampled=8) for name in ("fedavg", "rffl"))
    assert defended.accuracy > plain.accuracy + 0.1
    assert defended.malicious_rejected > 0.7
    assert defended.honest_rejected == 0


def test_rffl_accepts_colluding_clients() -> None:
    """Reputation is agreement with the aggregate, and identical large updates dominate the aggregate."""
    world = mlp_world(n_clients=20, malicious=0.3, q=0.1)
    result = outcome(world, InnerProduct(), "rffl", rounds=12, batch=32, sampled=20)
    assert result.accuracy < 0.2
    assert result.honest_rejected > 0.5
    assert result.malicious_rejected < 0.1


# FoolsGold


def test_foolsgold_stops_sybils() -> None:
    """Even a majority of them, but honest clients with similar updates are rejected too."""
    world = mlp_world(n_clients=20, malicious=0.6)
    attack = LabelFlip(source=1, target=7)
    plain, defended = (
        outcome(world, attack, name, rounds=20, batch=32, sampled=20) for name in ("fedavg", "foolsgold")
    )
    assert plain.recall < 0.6
    assert defended.recall > 0.85
    assert defended.malicious_rejected > 0.9


def test_foolsgold_does_not_stop_a_single_attacker() -> None:
    world = mlp_world(n_clients=20, malicious=0.05)
    result = outcome(world, SignFlip(30.0), "foolsgold", rounds=10, batch=32, sampled=20)
    assert result.accuracy < 0.2
    early = next(iter(simulate(world, SignFlip(30.0), get("foolsgold"), rounds=1, sampled=20, batch=32, seed=0)))
    assert float(early.verdict.weights[early.malicious]) > 0


# Rules with data on the server


@pytest.mark.parametrize("name", ["fltrust", "bygars", "bygars++", "diversefl"])
def test_rules_with_server_data_survive_a_malicious_majority(name: str) -> None:
    """Sixty percent of the clients flip the sign of their updates."""
    world = trusted_world(malicious=0.6, q=0.1)
    assert outcome(world, SignFlip(), name, rounds=30, batch=28).accuracy > 0.7


@pytest.mark.parametrize("name", ["fedavg", "median"])
def test_rules_without_server_data_do_not(name: str) -> None:
    world = trusted_world(malicious=0.6, q=0.1)
    assert outcome(world, SignFlip(), name, rounds=30, batch=28).accuracy < 0.25


@pytest.mark.parametrize("name", ["bygars", "bygars++"])
def test_bygars_uses_flipped_updates(name: str) -> None:
    """Their sign is flipped back: the model is as good as without an attack."""
    world = trusted_world(malicious=0.6, q=0.1)
    attacked, clean = (outcome(world, attack, name, rounds=20, batch=28) for attack in (SignFlip(5.0), Attack()))
    assert clean.accuracy > 0.7
    assert attacked.accuracy == pytest.approx(clean.accuracy, abs=0.02)
    assert attacked.malicious_rejected == 0


@pytest.mark.parametrize("name", ["fltrust", "bygars", "bygars++"])
def test_a_majority_cannot_spoil_batch_norm(name: str) -> None:
    """Clients that flip the sign at every step send honest statistics beside reversed weights."""
    world = trusted_world(malicious=0.6, q=0.1)
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    torch.manual_seed(0)
    task = Task.of(nn.Sequential(*layers), mean=world.task.mean, std=world.task.std)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    world = replace(world, task=task, trusted_data=replace(server, task=task))
    assert outcome(world, SignFlip(every_step=True), name, rounds=10, batch=28).accuracy > 0.7


def test_fltrust_is_as_good_as_its_data() -> None:
    world = trusted_world(malicious=0.6, q=0.1)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    biased = server.held[world.targets[server.held] < 2]  # two classes of ten
    world = replace(world, trusted_data=replace(server, held=biased))
    assert outcome(world, SignFlip(), "fltrust", rounds=30, batch=28).accuracy < 0.3


def test_sageflow_protects_a_trained_model() -> None:
    world = trusted_world(malicious=0.3, q=0.5, make=digits_world)
    start = train_honestly(world, rounds=60, batch=28)
    for attack in (SignFlip(5.0), Noise()):
        plain, defended = (
            outcome(world, attack, name, rounds=70, batch=28, start=start) for name in ("fedavg", "sageflow")
        )
        assert plain.accuracy < 0.25
        assert defended.accuracy > 0.7


def test_sageflow_does_not_protect_an_untrained_model() -> None:
    """In the first rounds the losses of honest and malicious clients do not differ."""
    world = trusted_world(malicious=0.3, q=0.5, make=digits_world)
    assert outcome(world, SignFlip(5.0), "sageflow", rounds=50, batch=28).accuracy < 0.3


def test_diversefl_accepts_unusual_honest_clients() -> None:
    world = trusted_world(malicious=0.6, q=0.5)  # clients with very different data
    defended = outcome(world, SignFlip(), "diversefl", rounds=50, batch=28)
    assert defended.accuracy > 0.7
    assert defended.malicious_rejected > 0.95
    assert defended.honest_rejected < 0.1


def test_diversefl_trusts_the_shared_sample() -> None:
    """A client that also flips the labels of its shared sample is compared with the same flipped training."""
    world = mlp_world(shared=8)
    server = world.trusted_data
    assert isinstance(server, ServerData)
    labels = world.targets.clone()
    for client in world.malicious.nonzero().flatten().tolist():
        labels[server.shared[client]] = 9 - labels[server.shared[client]]
    honest_sample = outcome(world, LabelFlip(), "diversefl", rounds=25, batch=8)
    world = replace(world, trusted_data=replace(server, targets=labels))
    flipped_sample = outcome(world, LabelFlip(), "diversefl", rounds=25, batch=8)
    assert honest_sample.malicious_rejected > 0.5
    assert flipped_sample.malicious_rejected < 0.2


# Clipping and noise

REPLACEMENT = Backdoor(fraction=0.5, scale=None)
CLIPPED: dict[str, Options] = {
    "norm-clipping": {"max_norm": 0.3},
    "weak-dp": {"max_norm": 0.3, "std": 0.005},
    "central-dp": {"max_norm": 0.3, "noise_multiplier": 0.2},
}


@cache
def before_replacement() -> tuple[World, Snapshot]:
    """Twenty clients, two of them malicious, and a model that they have trained honestly for 20 rounds."""
    world = mlp_world(n_clients=20, malicious=0.1)
    return world, train_honestly(world, rounds=20, batch=8, sampled=20, local_steps=5)


@cache
def replace_model(name: str, rounds: int, **options: float) -> Outcome:
    """The result of four rounds of model replacement, `rounds` after it began."""
    world, start = before_replacement()
    return outcome(
        world, REPLACEMENT, name, rounds=20 + rounds, batch=8, sampled=20, local_steps=5, start=start,
        schedule=Schedule(attack_stop=24), options=dict(options),
    )  # fmt: skip


@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_stops_model_replacement(name: str) -> None:
    defended = replace_model(name, 4, **CLIPPED[name])
    assert replace_model("fedavg", 4).success > 0.6
    assert defended.success < 0.05
    assert defended.accuracy > 0.85


def test_clipping_does_not_stop_patient_attackers() -> None:
    """A backdoor that stays within the norm limit succeeds after enough rounds."""
    world = mlp_world(malicious=0.2)
    result = outcome(world, Backdoor(), "norm-clipping", rounds=100, batch=8)
    assert result.success > 0.8
    assert result.accuracy > 0.8


# PCA clustering


def test_pca_clustering_stops_label_flips() -> None:
    world = mlp_world(n_clients=20, malicious=0.3, q=0.1)
    plain, defended = (
        outcome(world, LabelFlip(), name, rounds=8, batch=16, sampled=20, local_steps=5)
        for name in ("fedavg", "pca-clustering")
    )
    assert defended.accuracy > plain.accuracy + 0.05
    assert defended.malicious_rejected > 0.9
    assert defended.honest_rejected < 0.1


def test_pca_clustering_takes_the_majority_for_honest() -> None:
    world = mlp_world(n_clients=20, malicious=0.6, q=0.1, lr=0.05)
    result = outcome(world, LabelFlip(1, 7), "pca-clustering", rounds=18, batch=16, sampled=20, local_steps=5)
    assert result.success > 0.5
    assert result.honest_rejected > result.malicious_rejected + 0.3


# Rules of the years 2019 to 2025, with twenty clients in every round


def short_run(
    name: str, attack: Attack, malicious: float = 0.2, make: Callable[..., World] = mlp_world, **options: float
) -> Outcome:
    world = make(n_clients=20, malicious=malicious, q=0.1)
    return outcome(world, attack, name, rounds=25, batch=32, sampled=20, options=dict(options))


def test_what_breaks_the_mean() -> None:
    for attack in (SignFlip(5.0), InnerProduct()):
        assert short_run("fedavg", attack).accuracy < 0.25


@pytest.mark.parametrize("name", ["nnm", "arc", "dnc", "signguard", "flame", "lasa", "alignins", "freqfed"])
def test_these_stop_sign_flips(name: str) -> None:
    defended = short_run(name, SignFlip(5.0))
    assert defended.accuracy > 0.7
    if defended.honest_rejected > 0:  # nnm, arc and lasa reject nobody
        assert defended.malicious_rejected > 0.85
        assert defended.honest_rejected < 0.4


def test_rfa_stops_noise_but_not_sign_flips() -> None:
    assert short_run("fedavg", Noise(), make=digits_world).accuracy < 0.25
    assert short_run("rfa", Noise(), make=digits_world).accuracy > 0.5
    assert short_run("rfa", SignFlip(5.0), malicious=0.4, make=digits_world).accuracy < 0.3


def test_multi_metrics_stops_identical_updates_and_rejects_most_honest_clients() -> None:
    defended = short_run("multi-metrics", InnerProduct())
    assert defended.accuracy > 0.7
    assert defended.malicious_rejected > 0.95
    assert defended.honest_rejected > 0.55


@pytest.mark.parametrize("name", ["flame", "freqfed"])
def test_the_majority_rejects_honest_clients_without_an_attack(name: str) -> None:
    assert short_run(name, Attack(), malicious=0.0).honest_rejected > 0.25


def test_signguard_accepts_what_looks_usual() -> None:
    tailored = short_run("signguard", MinMax(), make=digits_world)
    assert tailored.accuracy < 0.3
    assert tailored.malicious_rejected < 0.4


def test_lasa_does_not_stop_many_identical_updates() -> None:
    assert short_run("lasa", InnerProduct(), malicious=0.4, make=digits_world).accuracy < 0.25


def test_a_malicious_client_spoils_its_bucket() -> None:
    """Two of twenty spoil at most two of ten averages; eight of twenty may spoil more than half of them."""
    assert short_run("bucketing", SignFlip(5.0), malicious=0.1).accuracy > 0.65
    assert short_run("bucketing", SignFlip(5.0), malicious=0.4).accuracy < 0.25


def test_rlr_learns_nothing_where_honest_clients_disagree() -> None:
    """Without an attack: eight of ten must agree."""
    assert short_run("rlr", Attack(), malicious=0.0, agreement=0.8).accuracy < 0.3


def test_rlr_stops_a_backdoor_of_few_clients() -> None:
    world, attack = mlp_world(n_clients=20, malicious=0.1, q=0.1), Backdoor(fraction=0.5)
    plain, defended = (outcome(world, attack, name, rounds=25, batch=32, sampled=20) for name in ("fedavg", "rlr"))
    assert plain.success > 0.5
    assert defended.success < 0.3
    assert defended.accuracy > 0.6


def test_fedrola_stops_identical_updates_only() -> None:
    assert short_run("fedrola", InnerProduct()).accuracy > 0.7
    assert short_run("fedrola", SignFlip(5.0)).accuracy < 0.25


def test_deepsight_stops_a_backdoor_but_not_sign_flips() -> None:
    """Images with a trigger are all of one class; sign flips touch every class."""
    backdoor = Backdoor(fraction=1.0)
    plain, defended = (
        short_run("fedavg", backdoor, make=digits_world),
        short_run("deepsight", backdoor, samples=20, draws=1, make=digits_world),
    )
    assert plain.success > 0.9
    assert defended.success < 0.05
    assert defended.malicious_rejected > 0.95
    assert defended.honest_rejected < 0.15
    flipped = short_run("deepsight", SignFlip(5.0), samples=0, make=digits_world)
    assert flipped.accuracy < 0.25
    assert flipped.malicious_rejected < 0.1


def test_fldetector_removes_noise_but_not_label_flips() -> None:
    """Noise differs in every round; flipped labels are the same data in every round."""
    noisy = short_run("fldetector", Noise(), window=5, make=digits_world)
    assert noisy.accuracy > 0.5
    assert noisy.malicious_rejected > 0.55  # all of them, after ten of 25 rounds
    assert noisy.honest_rejected < 0.1
    flipped = short_run("fldetector", LabelFlip(1, 7), window=5, make=digits_world)
    assert flipped.success > 0.7
    assert flipped.malicious_rejected < 0.3


@pytest.mark.skipif(not THOROUGH, reason="six seconds of training: only with COSDEFENSE_THOROUGH=1")
def test_worker_momentum_helps_centered_clipping() -> None:
    """An attack that hides in the noise of single updates has less room in their running averages."""
    world = digits_world(n_clients=20, malicious=0.4, q=0.1)
    plain, averaged = (
        outcome(
            world, ALIE(z=1.5), "centered-clipping", rounds=60, batch=8, sampled=20,
            options={"radius": 0.2, "momentum": momentum},
        )
        for momentum in (0.0, 0.9)
    )  # fmt: skip
    assert averaged.accuracy > plain.accuracy + 0.04


# Defenses in the clients' training


def test_fl_wbc_makes_a_backdoor_fade() -> None:
    """The attack succeeds; ten rounds later less of it is left than without the defense."""
    plain, defended = replace_model("fedavg", 14), replace_model("fl-wbc", 14, strength=1.2)
    assert plain.success > 0.6
    assert defended.success < 0.25
    assert defended.accuracy > 0.85


def test_fat_hardens_against_adversarial_images() -> None:
    world, adversary = digits_world(lr=0.2), AdversarialTraining(0.1)
    start = train_honestly(world, rounds=60, batch=8)
    plain, defended = (
        outcome(
            world, Attack(), name, rounds=100, batch=8, start=start, adversary=adversary, options=options
        ).evaluation
        for name, options in (("fedavg", None), ("fat", Options(steps=3)))
    )
    assert plain.adversarial_accuracy is not None
    assert defended.adversarial_accuracy is not None
    assert defended.adversarial_accuracy > plain.adversarial_accuracy + 0.08
    assert plain.adversarial_accuracy < plain.accuracy - 0.3
    assert defended.accuracy > 0.8


@pytest.mark.parametrize("name", ["fl-wbc", "fat"])
def test_client_side_defenses_do_not_stop_malicious_clients(name: str) -> None:
    options: Options = {"steps": 1} if name == "fat" else {}
    result = outcome(mlp_world(), InnerProduct(), name, rounds=15, batch=8, local_steps=2, options=options)
    assert result.accuracy < 0.2


# Attacks: each against the mean, and against the rule it was made for


def learning_rounds(name: str) -> int:
    """How long honest clients need for most of what they can learn; Krum, which keeps one of them, needs longer."""
    return 80 if name == "krum" else 60


@cache
def honest(name: str) -> float:
    return outcome(digits_world(), Attack(), name, rounds=learning_rounds(name), batch=8).accuracy


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
    attacked = outcome(digits_world(), attack, name, rounds=learning_rounds(name), batch=8)
    assert attacked.accuracy < honest(name) - loss_of_accuracy


@pytest.mark.parametrize(("name", "loss_of_accuracy"), [("cosdefense", 0.5), ("multi-krum", 0.4)])
def test_adaptive_attackers_undo_what_was_learned(name: str, loss_of_accuracy: float) -> None:
    """Twenty rounds with thirty trials each are enough. Ties share a weight in Multi-Krum, so copies gain less."""
    world, start = learned()
    attacked, honest = (
        outcome(world, attack, name, rounds=100, batch=8, start=start) for attack in (Adaptive(trials=30), Attack())
    )
    assert attacked.accuracy < honest.accuracy - loss_of_accuracy


@cache
def learned() -> tuple[World, Snapshot]:
    world = digits_world()
    return world, train_honestly(world, rounds=80, batch=8)


def test_krum_selects_the_updates_tailored_to_it() -> None:
    """Krum nearly always selects a tailored update, and hardly ever one of a sign flip."""
    tailored = outcome(mlp_world(), KrumPoisoning(), "krum", rounds=15, batch=8)
    assert tailored.malicious_rejected < 0.15
    assert outcome(mlp_world(), SignFlip(5.0), "krum", rounds=15, batch=8).malicious_rejected > 0.95


def test_backdoors_succeed_without_a_loss_of_accuracy() -> None:
    world = mlp_world(malicious=0.2)
    plain, attacked = (
        outcome(world, attack, "fedavg", rounds=100, batch=8).evaluation for attack in (Attack(), Backdoor())
    )
    never = evaluate(
        world.task, world.task.initial(), load("digits").test_inputs, load("digits").test_targets, Backdoor(), 10
    )
    assert attacked.attack_success is not None
    assert never.attack_success is not None
    assert attacked.attack_success > 0.8
    assert never.attack_success < 0.5
    assert attacked.accuracy > plain.accuracy - 0.1
