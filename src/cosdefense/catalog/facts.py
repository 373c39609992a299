"""When each defense was published, and what it costs the server in a round of n clients and d coordinates."""

from __future__ import annotations

from dataclasses import dataclass

SYMBOLS = (
    "n clients, d coordinates, h coordinates of the classifier, r drawn coordinates, T one client's local training, "
    "F one forward pass, m images at the server"
)


@dataclass(frozen=True)
class Facts:
    """The year of the paper, and the order of the number of operations beside the mean's n · d."""

    year: int
    cost: str


FACTS = {
    "fedavg": Facts(2017, "n d"),
    "median": Facts(2018, "n d"),
    "trimmed-mean": Facts(2018, "n d"),
    "bucketing": Facts(2022, "n d"),
    "rlr": Facts(2021, "n d"),
    "lasa": Facts(2025, "n d"),
    "alignins": Facts(2025, "n d"),
    "cosdefense": Facts(2023, "n h"),
    "krum": Facts(2017, "n² d"),
    "multi-krum": Facts(2017, "n² d"),
    "nnm": Facts(2023, "n² d"),
    "arc": Facts(2025, "n² d"),
    "rfa": Facts(2022, "4 n d"),
    "dnc": Facts(2021, "n² r"),
    "multi-metrics": Facts(2023, "n² d"),
    "signguard": Facts(2022, "n d"),
    "flame": Facts(2022, "n² d"),
    "freqfed": Facts(2024, "n d log d + n² d"),
    "deepsight": Facts(2022, "n d + 60,000 n F"),
    "pca-clustering": Facts(2020, "n² h"),
    "opposed-clusters": Facts(2026, "n² d"),
    "two-references": Facts(2026, "n² d"),
    "factions": Facts(2026, "n² d"),
    "fltrust": Facts(2021, "n d + T"),
    "bygars": Facts(2020, "n d + 3 T"),
    "bygars++": Facts(2020, "n d + T"),
    "sageflow": Facts(2021, "n d + n m F"),
    "diversefl": Facts(2020, "n d + n T"),
    "norm-clipping": Facts(2019, "n d"),
    "clipping-median": Facts(2023, "n d"),
    "centered-clipping": Facts(2021, "n d"),
    "weak-dp": Facts(2019, "n d"),
    "central-dp": Facts(2018, "n d"),
    "crfl": Facts(2021, "n d"),
    "rffl": Facts(2020, "n d"),
    "foolsgold": Facts(2020, "n² h"),
    "fedrola": Facts(2024, "n d"),
    "fldetector": Facts(2022, "n d + 100 d"),
    "fl-wbc": Facts(2021, "n d"),
    "fat": Facts(2020, "n d"),
}
