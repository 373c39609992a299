"""The example's nodes without Flower between them: which defense holds against which attack, in a few minutes.

python compare.py [--seeds 3] [--rounds 4] [--liars 3]
"""

from __future__ import annotations

import argparse
import sys

import torch
from digits.task import N_CLASSES, Data, network, test, test_set, train, training_set
from torch import Tensor

from cosdefense import Attack, Cohort, Defense, Layout, get
from cosdefense.catalog.registry import build_attack

N_NODES = 10
ATTACKS = ("none", "inner-product", "sign-flip", "label-flip")
DEFENSES = ("fedavg", "multi-krum", "median", "cosdefense")


def main() -> None:
    parser = argparse.ArgumentParser(description="Attacks × defenses on the example's data: mean accuracy over seeds.")
    for name, default in (("--seeds", 3), ("--rounds", 4), ("--liars", 3)):
        parser.add_argument(name, type=int, default=default)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    data = [training_set(node, N_NODES) for node in range(N_NODES)]
    sys.stdout.write(f"| attack of {wanted.liars} in {N_NODES} | {' | '.join(DEFENSES)} |\n{'| --- ' * 5}|\n")
    for name in ATTACKS:
        cells = []
        for defense in DEFENSES:
            attack, seeds = build_attack({"name": name}), range(wanted.seeds)
            found = [federated(data, attack, get(defense), seed, wanted.rounds, wanted.liars) for seed in seeds]
            cells.append(f"{sum(found) / len(found):.1%}")
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


def federated(data: list[Data], attack: Attack, defense: Defense, seed: int, rounds: int, liars: int) -> float:
    """The accuracy in the end. The first `liars` nodes lie."""
    torch.manual_seed(seed)
    model, state = network(), defense.init()
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    for number in range(1, rounds + 1):
        rows = [
            update(layout, params, data[node], attack if node < liars else Attack(), number, node, seed)
            for node in range(N_NODES)
        ]
        verdict, state = defense(Cohort.of(torch.stack(rows), params, layout, seed=number), state)
        params = params + verdict.update
    model.load_state_dict(layout.unflatten(params))
    return test(model, test_set())[0]


def update(layout: Layout, params: Tensor, data: Data, attack: Attack, number: int, node: int, seed: int) -> Tensor:
    """What a node sends; a liar knows its own update alone, as in a drill."""
    model = network()
    model.load_state_dict(layout.unflatten(params))
    data = attack.poison(*data, N_CLASSES, torch.Generator().manual_seed(node))
    train(model, data, epochs=5, lr=0.05, seed=10_000 * seed + 1000 * number + node)
    found = layout.flatten(model.state_dict()) - params
    cohort = Cohort.of(found[None], params, layout, torch.tensor([node]), seed=number)
    forged, _ = attack.forge(cohort, torch.tensor([True]), attack.init())
    return forged[0]


if __name__ == "__main__":
    main()
