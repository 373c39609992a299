"""Compares defenses and attacks on the example's data, without Flower. Takes a few minutes.

python compare.py [--seeds 3] [--rounds 4] [--malicious 3]
"""

from __future__ import annotations

import argparse
import sys

import torch
from digits.task import N_CLASSES, Data, build_network, load_test_set, load_training_set, measure, train
from torch import Tensor

from cosdefense import Attack, Cohort, Defense, Layout, get
from cosdefense.catalog.registry import build_attack

N_NODES = 10
ATTACKS = ("none", "inner-product", "sign-flip", "label-flip")
DEFENSES = ("fedavg", "multi-krum", "median", "cosdefense")


def main() -> None:
    parser = argparse.ArgumentParser(description="Attacks × defenses on the example's data: mean accuracy over seeds.")
    for name, default in (("--seeds", 3), ("--rounds", 4), ("--malicious", 3)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = [load_training_set(node, N_NODES) for node in range(N_NODES)]
    sys.stdout.write(f"| attack of {options.malicious} in {N_NODES} | {' | '.join(DEFENSES)} |\n{'| --- ' * 5}|\n")
    for name in ATTACKS:
        cells = []
        for defense in DEFENSES:
            attack = build_attack({"name": name})
            accuracies = [
                run_rounds(data, attack, get(defense), seed, options.rounds, options.malicious)
                for seed in range(options.seeds)
            ]
            cells.append(f"{sum(accuracies) / len(accuracies):.1%}")
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


def run_rounds(data: list[Data], attack: Attack, defense: Defense, seed: int, n_rounds: int, n_malicious: int) -> float:
    """The final accuracy. The first `n_malicious` nodes attack."""
    torch.manual_seed(seed)
    model, state = build_network(), defense.init()
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    for number in range(1, n_rounds + 1):
        rows = [
            compute_update(layout, params, data[node], attack if node < n_malicious else Attack(), number, node, seed)
            for node in range(N_NODES)
        ]
        verdict, state = defense(Cohort.of(torch.stack(rows), params, layout, seed=number), state)
        params = params + verdict.update
    model.load_state_dict(layout.unflatten(params))
    return measure(model, load_test_set())[0]


def compute_update(
    layout: Layout, params: Tensor, data: Data, attack: Attack, number: int, node: int, seed: int
) -> Tensor:
    """The update of one node. A malicious node knows only its own update, as with `MaliciousClient`."""
    model = build_network()
    model.load_state_dict(layout.unflatten(params))
    data = attack.poison(*data, N_CLASSES, torch.Generator().manual_seed(node))
    train(model, data, epochs=5, lr=0.05, seed=10_000 * seed + 1000 * number + node)
    update = layout.flatten(model.state_dict()) - params
    cohort = Cohort.of(update[None], params, layout, torch.tensor([node]), seed=number)
    forged, _ = attack.forge(cohort, torch.tensor([True]), attack.init())
    return forged[0]


if __name__ == "__main__":
    main()
