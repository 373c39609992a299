"""The paper's runs made of seeded random numbers: every experiment, small and quick to make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random import Generator

from cosdefense.runs.metrics import summarize
from cosdefense.runs.records import RoundRecord, RunRecord
from cosdefense.studies.paper.drift import DriftRun, Measurement

ROUNDS, START, SAMPLED, N_CLIENTS, STEPS = 60, 20, 10, 100, 10
DATASETS = {"paper-mnist": "mnist", "paper-fashion-mnist": "fashion-mnist", "paper-cifar-10": "cifar-10"}
DEFENSES = ("none", "Krum", "Krum (its paper)", "Clipping-Median", "CosDefense")
VARIED = ("Krum", "Clipping-Median", "CosDefense")  # in figures 4 and 6
ENDS = {"none": 0.1, "Krum": 0.1, "Krum (its paper)": 0.14, "Clipping-Median": 0.2, "CosDefense": 0.8}
FILTERS = {"Krum": "OracleKrum", "Krum (its paper)": "Krum", "Clipping-Median": "Clip", "CosDefense": "CosDefense"}
LAYERS = ("0.weight", "2.weight", "4.weight", "7.weight")
SEEDS = (0, 1)


def paper_runs(seeds: tuple[int, ...] = SEEDS) -> list[RunRecord]:
    """Every experiment of the paper."""
    return [run for name in experiments() for run in runs_of(name, seeds)]


def experiments() -> list[str]:
    others = ["paper-cifar-10-counters", "paper-scores"]
    varied = [f"paper-attackers-{share}" for share in (10, 20, 40)] + [f"paper-skew-{q}" for q in ("0.1", "0.3")]
    return [*DATASETS, *others, *varied]


def runs_of(name: str, seeds: tuple[int, ...] = SEEDS) -> list[RunRecord]:
    """One experiment, attacks × defenses × seeds."""
    return [make(name, attack, defense, seed) for attack, defense in _pairs(name) for seed in seeds]


def _pairs(name: str) -> Iterator[tuple[str, str]]:
    if name in DATASETS:
        yield from ((attack, defense) for attack in ("none", "inner product") for defense in DEFENSES)
    elif name == "paper-cifar-10-counters":
        yield "inner product", "Clipping-Median"
    elif name == "paper-scores":
        yield from (("none", "CosDefense"), ("inner product", "CosDefense"))
    else:
        yield from (("inner product", defense) for defense in VARIED)


def make(name: str, attack: str, defense: str, seed: int, rounds: int = ROUNDS, **changes: Any) -> RunRecord:
    """One run; `changes` replace entries of its header."""
    rng = np.random.default_rng([seed, *map(crc32, (name.encode(), attack.encode(), defense.encode()))])
    share = int(name.removeprefix("paper-attackers-")) / 100 if name.startswith("paper-attackers") else 0.3
    header = _header(name, attack, defense, seed, rounds, share) | changes
    records = tuple(_round(rng, number, name, attack, defense, share) for number in range(rounds))
    return RunRecord(header, records, summarize(records))


def _header(name: str, attack: str, defense: str, seed: int, rounds: int, share: float) -> dict[str, Any]:
    dataset = next((value for key, value in DATASETS.items() if name.startswith(key)), "mnist")
    q = float(name.removeprefix("paper-skew-")) if name.startswith("paper-skew-") else 0.5
    return {
        "experiment": {
            "name": name,
            "seeds": [seed],
            "data": {"dataset": dataset, "malicious": share, "partition": {"name": "label-skew", "q": q}},
            "model": {"name": "paper-cnn"},
            "training": {"rounds": rounds, "local_steps": 1},
            "schedule": {"attack_start": START, "defense_start": START},
            "attacks": [{"label": attack, "name": attack}],
            "defenses": [{"label": defense, "name": defense}],
        },
        "attack": attack,
        "defense": defense,
        "seed": seed,
        "device": "NVIDIA H200",
        "versions": {"cosdefense": "0.1.0", "torch": "2.13.0"},
        "dataset": dataset,
    }


def _round(rng: Generator, number: int, name: str, attack: str, defense: str, share: float) -> RoundRecord:
    clients = rng.permutation(N_CLIENTS)[:SAMPLED].tolist()
    attacked = number >= START and attack != "none"
    malicious = tuple(attacked and client < 100 * share for client in clients)
    scores = np.abs(rng.normal([0.1 + 0.3 * liar for liar in malicious], 0.1))
    rejects = defense not in ("none", "Clipping-Median") and number >= START
    rejected = scores >= np.sort(scores)[-3] if rejects else np.zeros(SAMPLED, dtype=bool)
    peace = 0.1 + 0.8 * (1 - np.exp(-min(number, START if attack != "none" else number) / 10))
    accuracy = peace + (ENDS[defense] - peace) * (1 - np.exp(-(number - START) / 5)) if attacked else peace
    accuracy = float(np.clip(accuracy + rng.normal(0, 0.02) + 0.5 * (0.3 - share), 0, 1))
    evaluated = number % 5 == 4
    filter_name = "TracedCosDefense" if name == "paper-scores" else FILTERS.get(defense)
    return RoundRecord(
        round=number,
        clients=tuple(clients),
        weights=tuple(float(not out) for out in rejected),
        malicious=malicious,
        defended=number >= START,
        scores={filter_name: tuple(scores.tolist())} if filter_name else {},
        accuracy=accuracy if evaluated else None,
        batch_statistics_accuracy=0.9 * accuracy if evaluated and name.startswith("paper-cifar-10") else None,
        seconds={"train": 0.1},
        peak_memory={"train": 9},
    )


def drift_runs(seeds: tuple[int, ...] = SEEDS) -> list[DriftRun]:
    """Figure 1's experiment."""
    return [_drift(np.random.default_rng([seed, 99]), seed) for seed in seeds]


def _drift(rng: Generator, seed: int) -> DriftRun:
    def draw(number: int) -> dict[str, list[float]]:
        means = {layer: np.exp(-(index + 1) * (number + 1) / 60) for index, layer in enumerate(LAYERS)}
        return {layer: (mean + rng.normal(0, 0.01, 10)).tolist() for layer, mean in means.items()}

    measurements = [Measurement(STEPS * (number + 1), draw(number), draw(number)) for number in range(ROUNDS)]
    return DriftRun({"experiment": {"name": "paper-drift"}, "seed": seed, "device": "NVIDIA H200"}, tuple(measurements))
