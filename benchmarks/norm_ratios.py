"""How much longer than the median an honest update is: the basis for `Defended(max_norm_ratio=…)`.

    python benchmarks/norm_ratios.py [--rounds 200]

Printed: over all rounds of an honest federation on the digits, the largest norm of an update relative to the lower
median norm of its round, the median of this ratio, and the share of rounds in which it exceeds 10.
"""

from __future__ import annotations

import argparse
from typing import ClassVar

import torch

from cosdefense.attacks import Attack
from cosdefense.catalog.registry import get
from cosdefense.core import Cohort, Defense, Judged, State
from cosdefense.data import load
from cosdefense.data.partition import Dirichlet, Iid, LabelSkew, Partition, Shards
from cosdefense.ops import row_norms
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.world import World
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.models import small_cnn
from cosdefense.training.task import Task

SPLITS: dict[str, Partition] = {
    "IID": Iid(), "label skew 0.9": LabelSkew(0.9), "2 classes each": Shards(2), "Dirichlet 0.1": Dirichlet(0.1),
}  # fmt: skip


class Measuring(Defense):
    """Plain averaging that keeps the norms."""

    norms: ClassVar[list[list[float]]] = []

    def judge(self, cohort: Cohort, state: State) -> tuple[Judged, State]:
        self.norms.append(row_norms(cohort.trainable()).tolist())
        return super().judge(cohort, state)


def measure(partition: Partition, rounds: int, steps: int) -> list[float]:
    digits = load("digits")
    torch.manual_seed(0)
    task = Task.of(small_cnn((1, 8, 8), 10, width=8), mean=digits.mean, std=digits.std)
    world = World.of(
        task, digits.train_inputs, digits.train_targets, n_clients=50, partition=partition, trainer=LocalSGD(0.1)
    )
    plain = get("fedavg")
    defense = Measuring(plain.filters, plain.aggregator)
    Measuring.norms = []
    for _ in simulate(world, Attack(), defense, rounds=rounds, sampled=10, batch=8, seed=0, local_steps=steps):
        pass
    return [max(norms) / sorted(norms)[(len(norms) - 1) // 2] for norms in Measuring.norms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| split | local steps | largest ratio | median ratio | rounds above 10 |")
    print("| --- | --- | --- | --- | --- |")
    for name, partition in SPLITS.items():
        for steps in (1, 10):
            ratios = torch.tensor(measure(partition, rounds, steps))
            print(
                f"| {name} | {steps} | {ratios.max():.1f} | {ratios.median():.1f} | "
                f"{100 * (ratios > 10).double().mean():.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
