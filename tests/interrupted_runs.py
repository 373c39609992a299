"""Runs that are interrupted after some rounds, as by Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cosdefense.data import Dataset
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.records import RoundRecord
from cosdefense.runs.single_run import run


def rounds_run(
    cell: Experiment,
    folder: Path,
    dataset: Dataset,
    device: torch.device = torch.device("cpu"),
    *,
    stop_after: int | None = None,
    **options: Any,
) -> list[int]:
    """Run to the end, or until so many rounds are recorded; the numbers of these rounds."""
    numbers: list[int] = []

    def count(record: RoundRecord) -> None:
        numbers.append(record.round)
        if len(numbers) == stop_after:
            raise KeyboardInterrupt

    try:
        run(cell, folder, dataset, device, on_round=count, **options)
    except KeyboardInterrupt:
        assert len(numbers) == stop_after
    return numbers
