"""FreqFed: accept the largest group of models whose low frequencies point the same way.

Fereidooni, Pegoraro, Rieger, Dmitrienko, Sadeghi. FreqFed: A Frequency Analysis-Based Approach for Mitigating Poisoning
Attacks in Federated Learning. NDSS 2024. https://arxiv.org/abs/2312.04432

No code by the authors was found. Public implementations transform the whole vector at once, as here, or as a square;
which one the paper means could not be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..core import Cohort, Filter, Judgment, State
from ..ops import compute_dtype, cosine_distances, low_frequencies, majority_component
from .flame import distance_to_accepted

Transformed = Literal["models", "updates"]


@dataclass(frozen=True)
class FreqFed(Filter):
    """Link clients by growing cosine distance of their low frequencies until more than half are connected.

    The frequencies are the first half of the coefficients of the discrete cosine transform (DCT-II) of the flattened
    model w + u. Which coordinates are neighbors depends on the order of the tensors and neurons, and so does the rule.
    The decision is FLAME's; nothing is clipped, so that a clip should stand before it. The score is the distance to the
    nearest accepted client. Without an attack a third or more of the clients are rejected. Attacks in high frequencies
    are not seen.

    Args:
        transformed: What is transformed: "models", as in two of three public implementations, or "updates".
    """

    transformed: Transformed = "models"

    def __post_init__(self) -> None:
        if self.transformed not in get_args(Transformed):
            raise ValueError(f"FreqFed.transformed must be one of {get_args(Transformed)}, got {self.transformed!r}")

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        rows = cohort.trainable()
        n_kept, dtype = max(1, rows.shape[1] // 2), compute_dtype(rows.dtype)
        low, origin = low_frequencies(rows, n_kept, dtype), None
        if self.transformed == "models":  # the transform is linear: that of w + u is that of w plus that of u
            origin = low_frequencies(cohort.params[None, : rows.shape[1]], n_kept, dtype)[0]
        distances = cosine_distances(low, origin)
        accepted = majority_component(distances)
        return Judgment(distance_to_accepted(distances, accepted), accepted), state
