"""The best rules of a field, chosen by their rank and not by hand."""

from __future__ import annotations

from collections.abc import Sequence

from ...catalog.options import ConfigError
from ...runs.experiment import Experiment
from ...runs.records import RunRecord
from .defense_results import list_settings
from .seeds import DESIGN, find_seed_set


def list_best(n: int, planned: Sequence[Experiment], runs: Sequence[RunRecord]) -> list[str]:
    """The labels of the n defenses with the best worst case over design seeds, with an oracle or without.

    All planned defenses are compared over the same attacks and seeds: an error where one of them lacks some.
    """
    if n < 1:
        raise ConfigError(f"--best must be at least 1, got {n}")
    finished = [run for run in runs if run.summary and find_seed_set(run.header["seed"]) == DESIGN]
    if not finished:
        raise ConfigError(f"--best needs the finished runs of {planned[0].name} with design seeds: there are none")
    met = {run.label: set[tuple[str, int]]() for run in finished}
    for run in finished:
        met[run.label].add((run.header["attack"], run.header["seed"]))
    everything = set.union(*met.values())
    for label in dict.fromkeys(run.defenses[0].label for run in planned):
        if missing := everything - met.get(label, set()):
            raise ConfigError(
                f"--best compares all defenses of {planned[0].name} over the same {len(everything)} runs: {label} "
                f"lacks {len(missing)}"
            )
    (setting,) = list_settings(finished)
    ranked = sorted(setting.results, key=lambda result: result.rank)
    return [result.defense for result in ranked[:n]]
