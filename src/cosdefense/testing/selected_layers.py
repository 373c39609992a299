"""A filter that names the tensors it looks at must decide from these alone: see `cosdefense.testing`."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core import Cohort, Filter, TooFewClients
from .examples import cohorts


def check_selected_layers(part: Filter, *, device: str = "cpu") -> None:
    """Check that a cohort without the other tensors gets the same verdict, in two rounds."""
    for cohort in cohorts(device, half_precision=True):
        names = part.select_layers(cohort.layout)
        if names is None:
            return
        whole_state = short_state = part.init()
        short = select_layers(cohort, names)
        for number in range(2):
            try:
                expected, whole_state = part(replace(cohort, seed=number), whole_state)
            except TooFewClients:
                break
            judgment, short_state = part(replace(short, seed=number), short_state)
            promise = f"{part} selects {names}, so without the other tensors"
            assert judgment.updates is None, f"{promise} it must not rewrite rows"
            assert torch.equal(judgment.weights != 0, expected.weights != 0), f"{promise} it must accept the same"
            for name in ("scores", "weights"):
                result, wanted = getattr(judgment, name).double(), getattr(expected, name).double()
                same = torch.allclose(result, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
                assert same, f"{promise} the {name} must be the same: expected {wanted}, got {result}"


def select_layers(cohort: Cohort, names: tuple[str, ...]) -> Cohort:
    """The cohort without the other tensors."""
    layout = cohort.layout.only(names)
    where = [cohort.layout.slices[name] for name, _ in layout.shapes]
    updates = torch.cat([cohort.updates[:, some] for some in where], dim=1)
    return replace(cohort, updates=updates, params=torch.cat([cohort.params[some] for some in where]), layout=layout)
