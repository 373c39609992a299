"""Finished runs of an arena whose numbers are given, as they are read back from published records."""

from __future__ import annotations

from typing import Any

from cosdefense.catalog.registry import build_defense, describe
from cosdefense.runs.records import RoundRecord, RunRecord

ROUNDS = 300
ATTACKS = {  # label → name in the catalog
    "none": "none",
    "ipm": "inner-product",
    "ALIE": "alie",
    "patch": "backdoor",
    "adaptive": "adaptive",
}
DEFENSES: dict[str, dict[str, Any]] = {
    "plain": {"name": "fedavg"},
    "median": {"name": "median"},
    "CosDefense": {"name": "cosdefense"},
    "FoolsGold": {"name": "foolsgold"},
    "Krum": {"name": "krum"},
    "FLTrust": {"name": "fltrust"},
}


def make(
    defense: str,
    attack: str,
    seed: int,
    tail: float | None,
    *,
    dataset: str = "mnist",
    share: float = 0.3,
    rounds: int = ROUNDS,
    **summary: Any,
) -> RunRecord:
    """One run that ended like this; what else its summary holds may be given."""
    part = build_defense(DEFENSES[defense])
    header = {
        "experiment": {
            "name": f"arena-{dataset}-{100 * share:.6g}",
            "seeds": [seed],
            "data": {"dataset": dataset, "malicious": share},
            "training": {"rounds": rounds},
            "attacks": [{"label": attack, "name": ATTACKS[attack]}],
            "defenses": [{"label": defense, **describe(part)}],
        },
        "attack": attack,
        "defense": defense,
        "needs": sorted(part.needs),
        "seed": seed,
        "device": "NVIDIA H200",
        "thinned": True,
    }
    last = RoundRecord(rounds - 1, (0, 1), (1.0, 0.0), (False, True), accuracy=tail)
    return RunRecord(header, (last,), {"tail_accuracy": tail, **summary})


def pair(defense: str, attack: str, tails: tuple[float | None, float | None], **summary: Any) -> list[RunRecord]:
    """Two seeds; of the summary, either one number for both or a pair."""
    return [
        make(defense, attack, seed, tails[seed], **{key: _of(value, seed) for key, value in summary.items()})
        for seed in (0, 1)
    ]


def _of(value: Any, seed: int) -> Any:
    return value[seed] if isinstance(value, tuple) else value


def arena_runs() -> list[RunRecord]:
    """Two seeds of three defenses without an oracle and two with one; numbers that can be followed by hand."""
    nan = float("nan")
    return [
        *pair("plain", "none", (0.90, 0.94)),
        *pair("plain", "ipm", (0.10, 0.10)),
        *pair("plain", "ALIE", (0.70, 0.72)),
        *pair("plain", "patch", (0.91, 0.93), attack_success=(0.95, 0.97)),
        *pair("plain", "adaptive", (0.10, 0.12)),
        *pair("median", "none", (0.88, 0.90), seconds={"train": 60.0, "defend": 0.6}),
        *pair("median", "ipm", (0.40, 0.44), seconds={"train": 60.0, "defend": 0.9}),
        *pair("median", "ALIE", (0.80, 0.80), seconds={"train": 60.0, "defend": 0.9}),
        *pair("median", "patch", (0.86, 0.88), seconds={"train": 60.0, "defend": 90.0}, attack_success=0.5),
        *pair("median", "adaptive", (0.30, 0.30), seconds={"train": 60.0, "defend": 0.9}),
        *pair("CosDefense", "none", (0.93, 0.95), honest_rejected=(0.40, 0.44)),
        *pair("CosDefense", "ipm", (0.85, 0.87), honest_rejected=(0.30, 0.34)),
        *pair("CosDefense", "ALIE", (0.10, nan), honest_rejected=0.99),
        *pair("CosDefense", "patch", (0.90, 0.90), honest_rejected=(0.36, 0.40), attack_success=(0.20, 0.30)),
        *pair("CosDefense", "adaptive", (0.10, None), honest_rejected=0.99),
        *pair("Krum", "none", (0.80, 0.80), honest_rejected=0.9),
        *pair("Krum", "ipm", (0.30, 0.50), honest_rejected=0.8),
        *pair("Krum", "ALIE", (0.10, 0.10), honest_rejected=0.95),
        *pair("Krum", "patch", (0.80, 0.80), honest_rejected=0.9, attack_success=0.99),
        *pair("Krum", "adaptive", (0.2, 0.2), honest_rejected=0.9),
        *pair("FLTrust", "none", (0.90, 0.90), honest_rejected=0.1),
        *pair("FLTrust", "ipm", (0.88, 0.88), honest_rejected=0.1),
        *pair("FLTrust", "ALIE", (0.87, 0.89), honest_rejected=0.3),
        *pair("FLTrust", "patch", (0.89, 0.89), honest_rejected=0.2, attack_success=0.1),
        *pair("FLTrust", "adaptive", (0.7, 0.7), honest_rejected=0.2),
    ]
