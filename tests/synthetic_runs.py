"""Runs made of seeded random numbers, shaped like those of the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random import Generator

from cosdefense.runs.records import RoundRecord, RunRecord

DEFENSES = ("fedavg", "median", "multi-krum", "cosdefense")
N_CLIENTS, SAMPLED, ATTACK_START = 50, 10, 60
CLASSES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BEST = {"fedavg": 0.10, "median": 0.46, "multi-krum": 0.58, "cosdefense": 0.71}  # where the attack leaves a defense
QUALITY = {"multi-krum": 1.0, "cosdefense": 3.0}  # how far apart a filter sees honest and malicious clients


def make_run(
    defense: str = "cosdefense", seed: int = 0, attack: str = "inner-product", rounds: int = 200, **changes: Any
) -> RunRecord:
    """One run; `changes` replace entries of its header."""
    rng = np.random.default_rng([seed, crc32(defense.encode()), crc32(attack.encode())])
    liars = set(rng.permutation(N_CLIENTS)[:15].tolist())
    header = {
        "experiment": {
            "name": "synthetic",
            "data": {"name": "cifar10", "partition": {"kind": "label-skew", "q": 0.5}},
            "training": {"batch": 32, "rate": 0.01},
            "schedule": {"rounds": rounds, "attack_start": ATTACK_START, "sampled": SAMPLED},
            "attacks": [{"label": attack, "name": attack}],
            "defenses": [{"label": defense, "name": defense}],
            "seeds": [seed],
        },
        "attack": attack,
        "defense": defense,
        "seed": seed,
        "classes": list(CLASSES),
        "versions": {"cosdefense": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "split": rng.multinomial(500, rng.dirichlet([0.5] * 10, N_CLIENTS)).tolist(),
        "n_malicious": len(liars),
    } | changes
    records = tuple(make_round(rng, number, defense, liars, attack) for number in range(rounds))
    return RunRecord(header, records, {})


def make_federation() -> RunRecord:
    """A run in which nobody knows who is malicious, and of which little is written down."""
    run = make_run()
    rounds = tuple(replace(record, malicious=None, seconds={}) for record in run.rounds)
    return RunRecord({"experiment": {"name": "live"}, "defense": "cosdefense"}, rounds)


def make_round(rng: Generator, number: int, defense: str, liars: set[int], attack: str) -> RoundRecord:
    clients = rng.permutation(N_CLIENTS)[:SAMPLED].tolist()
    attacked = number >= ATTACK_START and attack != "none"
    malicious = [attacked and client in liars for client in clients]
    quality = QUALITY.get(defense)
    scores = rng.normal([(quality or 0) * liar for liar in malicious], 1.0)
    rejected = scores > scores.mean() + 0.4 * scores.std() if quality else np.zeros(SAMPLED, dtype=bool)
    peace = 0.08 + 0.7 * (1 - np.exp(-min(number, ATTACK_START if attack != "none" else number) / 30))
    end = BEST.get(defense, 0.3)
    accuracy = peace + (end - peace) * (1 - np.exp(-(number - ATTACK_START) / 15)) if attacked else peace
    return RoundRecord(
        round=number,
        clients=tuple(clients),
        weights=tuple(float(not out) for out in rejected),
        malicious=tuple(malicious),
        scores={defense: tuple(scores.tolist())} if quality else {},
        accuracy=float(np.clip(accuracy + rng.normal(0, 0.012), 0, 1)) if number % 2 else None,
        seconds={"train": 0.1, "defend": 0.01},
    )


def make_runs(seeds: int = 1, attacks: tuple[str, ...] = ("inner-product",), rounds: int = 200) -> list[RunRecord]:
    return [
        make_run(defense, seed, attack, rounds) for attack in attacks for defense in DEFENSES for seed in range(seeds)
    ]
