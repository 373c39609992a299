"""Writes hospitals.csv: breast-cancer samples of five unequal hospitals, one of them an oncology center.

scikit-learn ships the samples (569 tumors, 30 measurements each). Who owns which is made up: the oncology center gets
95 % malignant tumors, the others 19 to 32 %.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

HOSPITALS = {  # malignant and benign tumors
    "Aberg": (25, 95),
    "Birke": (20, 80),
    "Cedar": (12, 50),
    "Dorf": (60, 127),
    "Oncology": (95, 5),
}


def write_table(path: Path) -> None:
    """One line per tumor: the hospital, the diagnosis and the measurements."""
    from sklearn.datasets import load_breast_cancer

    samples = load_breast_cancer()
    rng = np.random.default_rng(0)
    malignant, benign = (rng.permutation(np.flatnonzero(samples.target == diagnosis)).tolist() for diagnosis in (0, 1))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "diagnosis", *samples.feature_names])
        for hospital, counts in HOSPITALS.items():
            for name, pool, count in zip(("malignant", "benign"), (malignant, benign), counts, strict=True):
                for _ in range(count):
                    writer.writerow([hospital, name, *samples.data[pool.pop()]])


if __name__ == "__main__":
    write_table(Path(sys.argv[1] if len(sys.argv) > 1 else "hospitals.csv"))
