"""How BatchNorm statistics are combined: accuracy with and without poisoned statistics, IID and not.

    python benchmarks/buffer_rules.py                      rules, with four defenses on the digits
    python benchmarks/buffer_rules.py --presets            every preset as it is, with and without poisoned statistics
    python benchmarks/buffer_rules.py --dataset cifar-10 --model resnet18 --device cuda …

A network with BatchNorm learns: 20 clients, 12 of them in a round, 5 of the 20 malicious, so that most clients of every
round are honest. Printed: the mean accuracy of the last ten rounds over the seeds. "median of the accepted" is a rule
that `Defense` does not offer. The server has 100 samples of its own and 10 of every client: some presets need them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from cosdefense import Cohort, Defense
from cosdefense.attacks import Attack, PoisonedBuffers
from cosdefense.catalog.registry import PRESETS, get
from cosdefense.core import Judged, State
from cosdefense.data import Dataset, load
from cosdefense.data.partition import Iid, LabelSkew, Partition, Shards
from cosdefense.simulation.evaluation import evaluate
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.world import World
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import resnet18
from cosdefense.training.server_data import ServerData
from cosdefense.training.task import Task

LAST, CLIENTS, SAMPLED, STEPS = 10, 20, 12, 3  # rounds that are evaluated, clients in all and in a round, local steps
N_HELD, N_SHARED = 100, 10  # samples at the server: its own, and of each client


@dataclass(frozen=True)
class MedianOfAccepted(Defense):
    """Only the accepted clients decide about buffers."""

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        judged, state = super().judge(cohort, state)
        return replace(judged, buffers=judged.accepted.buffers()), state


MEDIAN = '`buffers = "median"`'  # the default
RULES: dict[str, Callable[[Defense], Defense]] = {
    '`buffers = "aggregator"`': lambda defense: replace(defense, buffers="aggregator"),
    "median of the accepted": lambda defense: MedianOfAccepted(defense.filters, defense.aggregator),
    MEDIAN: lambda defense: defense,
}
SPLITS: dict[str, Partition] = {"IID": Iid(), "label skew 0.9": LabelSkew(0.9), "2 classes each": Shards(2)}
FOUR = ("fedavg", "krum", "multi-krum", "cosdefense")
ATTACKS: dict[str, Attack] = {"none": Attack(), "poisoned buffers": PoisonedBuffers()}


def small_network(shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), n_classes),
    )  # fmt: skip


MODELS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {"small": small_network, "resnet18": resnet18}


@dataclass(frozen=True)
class Bench:
    """What all runs have in common."""

    data: Dataset
    model: str
    rounds: int
    batch: int
    seeds: int
    device: str

    def measure(self, defense: Defense, attack: Attack, partition: Partition) -> float:
        """The mean accuracy over the seeds."""
        return fmean(self._run(defense, attack, partition, seed) for seed in range(self.seeds))

    def _run(self, defense: Defense, attack: Attack, partition: Partition, seed: int) -> float:
        world = self._build_world(partition, seed)
        images, labels = self.data.test_inputs.to(self.device), self.data.test_targets.to(self.device)
        accuracies = []
        for done in simulate(
            world, attack, defense, rounds=self.rounds, sampled=SAMPLED, batch=self.batch, seed=seed, local_steps=STEPS
        ):
            if done.number >= self.rounds - LAST:
                found = evaluate(world.task, done.after.params, images, labels, Attack(), self.data.n_classes)
                accuracies.append(found.accuracy)
        return fmean(accuracies)

    def _build_world(self, partition: Partition, seed: int) -> World:
        data, trainer = self.data, LocalSGD(0.05)
        torch.manual_seed(seed)
        channels, height, width = data.train_inputs.shape[1:]
        model = MODELS[self.model]((channels, height, width), data.n_classes).to(self.device)
        task = Task.of(model, mean=data.mean, std=data.std)
        images, labels = data.train_inputs.to(self.device), data.train_targets.to(self.device)
        world = World.of(
            task, images, labels, n_clients=CLIENTS, malicious=0.25, partition=partition, trainer=trainer, seed=seed,
            rows=torch.arange(N_HELD, len(labels)),
        )  # fmt: skip
        shared = {client: rows[:N_SHARED] for client, rows in enumerate(world.partition)}
        server = ServerData(task, trainer, STEPS, self.batch, images, labels, torch.arange(N_HELD), shared)
        return replace(world, trusted_data=server)


def compare_rules(
    bench: Bench, defenses: Sequence[str], splits: Sequence[str], attacks: Sequence[str], rules: Sequence[str]
) -> None:
    _print_row("defense", "split", "attack", *rules)
    _print_row(*["---"] * (3 + len(rules)))
    for name in defenses:
        for split in splits:
            for attack in attacks:
                found = [bench.measure(RULES[rule](get(name)), ATTACKS[attack], SPLITS[split]) for rule in rules]
                _print_row(name, split, attack, *(f"{100 * accuracy:.1f} %" for accuracy in found))


def compare_presets(bench: Bench, presets: Sequence[str], splits: Sequence[str]) -> None:
    """What every preset loses to poisoned statistics, in points."""
    _print_row("preset", *(f"{split}: {column}" for split in splits for column in (*ATTACKS, "lost")))
    _print_row(*["---"] * (1 + 3 * len(splits)))
    for name in presets:
        cells = []
        for split in splits:
            clean, attacked = (bench.measure(get(name), attack, SPLITS[split]) for attack in ATTACKS.values())
            cells += [f"{100 * clean:.1f} %", f"{100 * attacked:.1f} %", f"{100 * (clean - attacked):.1f}"]
        _print_row(name, *cells)


def _print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--presets", action="store_true", help="presets as they are, instead of rules")
    parser.add_argument("--defenses", nargs="+", choices=PRESETS, help="default: four of them, or all presets")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--shipped", action="store_true", help="only the two rules that Defense offers")
    given = parser.parse_args()
    bench = Bench(load(given.dataset), given.model, given.rounds, given.batch, given.seeds, given.device)
    if given.presets:
        compare_presets(bench, given.defenses or list(PRESETS), given.splits)
    else:
        rules = [rule for rule in RULES if not (given.shipped and rule == "median of the accepted")]
        compare_rules(bench, given.defenses or FOUR, given.splits, given.attacks, rules)


if __name__ == "__main__":
    main()
