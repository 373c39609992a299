"""Layout, cohort, the parts of a defense, the defense, and its saved state."""

from .client_table import ClientTable
from .cohort import Cohort, TooFewClients
from .defense import BufferRule, Defense
from .layout import Layout, UnknownLayer
from .parts import Aggregator, ClientHook, Filter, Judgment, Loss, Need, Part, State, Teaching
from .randomness import derive, generator, use_seed
from .running_average import check_decay, running_average
from .similarities import RowSimilarities, Similarities, SimilarityFilter
from .state import pack, unpack
from .trusted_data import MissingTrustedData, TrustedData
from .verdict import Judged, Verdict

__all__ = [
    "Aggregator",
    "BufferRule",
    "ClientHook",
    "ClientTable",
    "Cohort",
    "Defense",
    "Filter",
    "Judged",
    "Judgment",
    "Layout",
    "Loss",
    "MissingTrustedData",
    "Need",
    "Part",
    "RowSimilarities",
    "Similarities",
    "SimilarityFilter",
    "State",
    "Teaching",
    "TooFewClients",
    "TrustedData",
    "UnknownLayer",
    "Verdict",
    "check_decay",
    "derive",
    "generator",
    "pack",
    "running_average",
    "unpack",
    "use_seed",
]
