"""How BatchNorm statistics are combined: accuracy with and without poisoned statistics, IID and not.

    python benchmarks/buffer_rules.py [--rounds 100] [--seeds 3] [--device cuda]

A small network with BatchNorm learns the digits: 20 clients, 12 of them in a round, 5 of the 20 malicious, so that most
clients of every round are honest. Printed: the mean accuracy of the last ten rounds over the seeds. "median of the
accepted" is a rule that `Defense` does not offer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from cosdefense import Cohort, Defense
from cosdefense.attacks import Attack, PoisonedBuffers
from cosdefense.catalog.registry import get
from cosdefense.core import Judged, State
from cosdefense.data import load
from cosdefense.data.partition import Iid, LabelSkew, Partition, Shards
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.world import World
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task

LAST = 10  # rounds that are evaluated


@dataclass(frozen=True)
class MedianOfAccepted(Defense):
    """Only the accepted clients decide about buffers."""

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        judged, state = super().judge(cohort, state)
        return replace(judged, buffers=judged.accepted.buffers()), state


RULES: dict[str, Callable[[Defense], Defense]] = {
    '`buffers = "aggregator"`': lambda defense: replace(defense, buffers="aggregator"),
    "median of the accepted": lambda defense: MedianOfAccepted(defense.filters, defense.aggregator),
    '`buffers = "median"`': lambda defense: defense,
}
SPLITS: dict[str, Partition] = {"IID": Iid(), "label skew 0.9": LabelSkew(0.9), "2 classes each": Shards(2)}
ATTACKS: dict[str, Attack] = {"none": Attack(), "poisoned buffers": PoisonedBuffers()}


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def measure(defense: Defense, attack: Attack, partition: Partition, rounds: int, seed: int, device: str) -> float:
    digits = load("digits")
    torch.manual_seed(seed)
    task = Task.of(build_model().to(device), mean=digits.mean, std=digits.std)
    world = World.of(
        task, digits.train_images.to(device), digits.train_labels.to(device), n_clients=20, malicious=0.25,
        partition=partition, trainer=LocalSGD(0.05), seed=seed,
    )  # fmt: skip
    images, labels = digits.test_images.to(device), digits.test_labels.to(device)
    accuracies = []
    for done in simulate(world, attack, defense, rounds=rounds, sampled=12, batch=16, seed=seed, local_steps=3):
        if done.number >= rounds - LAST:
            accuracies.append(evaluate(task, done.after.params, images, labels, Attack(), 10).accuracy)
    return fmean(accuracies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--defenses", nargs="+", default=["fedavg", "krum", "multi-krum", "cosdefense"])
    given = parser.parse_args()
    print("| defense | split | attack | " + " | ".join(RULES) + " |")
    print("| --- | --- | --- |" + " --- |" * len(RULES))
    for name in given.defenses:
        for split, partition in SPLITS.items():
            for label, attack in ATTACKS.items():
                cells = []
                for rule in RULES.values():
                    found = [
                        measure(rule(get(name)), attack, partition, given.rounds, seed, given.device)
                        for seed in range(given.seeds)
                    ]
                    cells.append(f"{100 * fmean(found):.1f} %")
                print(f"| {name} | {split} | {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
