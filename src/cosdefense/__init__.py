"""cosdefense keeps poisoned model updates out of federated learning.

Clients send updates. Filters judge them. An aggregator combines what is left. The server adds the result.
"""

from .attacks import Attack
from .catalog import recipe
from .cohort import Cohort, MissingTrustedData, TooFewClients, TrustedData
from .defense import Aggregator, ClientHook, Defense, Filter, Judgment, Need, Verdict
from .layout import Layout
from .memory import ClientTable

__version__ = "0.1.0"

__all__ = [
    "Aggregator",
    "Attack",
    "ClientHook",
    "ClientTable",
    "Cohort",
    "Defense",
    "Filter",
    "Judgment",
    "Layout",
    "MissingTrustedData",
    "Need",
    "TooFewClients",
    "TrustedData",
    "Verdict",
    "recipe",
]
