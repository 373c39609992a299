"""Which attacks and defenses can take part on a given model, dataset and number of clients."""

from __future__ import annotations

import torch

from ..attacks import Attack
from ..core import Cohort
from ..data import Dataset
from ..runs.experiment import Experiment
from ..runs.prepare import build_trial_cohort, build_world
from ..training.batches import to_unit_range


def check_attack(attack: Attack, dataset: Dataset) -> None:
    """A `ValueError` if the attack was not made for such data."""
    attack.check_data(dataset.train_inputs, dataset.train_targets, dataset.n_classes)
    attack.prepare_evaluation(to_unit_range(dataset.train_inputs[:1]), dataset.train_targets[:1], dataset.n_classes)


def build_trial(experiment: Experiment, dataset: Dataset) -> Cohort:
    """A round of the experiment's model and data, to see which defenses can judge it."""
    cell = next(experiment.cells())
    return build_trial_cohort(cell, build_world(cell, dataset, torch.device("cpu")))
