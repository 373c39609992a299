"""The kinds of things that can be listed by name."""

from enum import StrEnum


class Kind(StrEnum):
    defenses = "defenses"
    filters = "filters"
    aggregators = "aggregators"
    hooks = "hooks"
    attacks = "attacks"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"
