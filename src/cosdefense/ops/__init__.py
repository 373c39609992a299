"""Vector operations on rows of plain tensors; nothing here knows about clients or rounds.

Malicious rows may hold any finite number, so no operation may cancel or return NaN for finite input.
Sums over coordinates run in float64 and in blocks: a float32 norm of eleven million coordinates is
off by 4e-4, and a float32 square overflows at 1e19. Squared distances of float64 rows beyond 1e154
are infinite, which is still comparable. Half-precision rows are computed in float32 or float64 and
rounded once.

No operation copies all rows. It needs a block, a result, or n × n numbers beside them.
"""

from .clusters import largest_mode, majority_component
from .coordinatewise import kth_largest, mean_near_median, median, sign_sum, trimmed_mean
from .cosines import cosine, cosine_distances, cosines, cosines_with
from .density_clusters import density_clusters
from .distances import manhattan_distances, squared_distances
from .finite import finite_rows, stays_finite, surely_count
from .frequencies import low_frequencies
from .groups import count_groups, split_in_two
from .norms import clip_rows, rescale_rows, row_norms
from .precision import compute_dtype
from .rowwise import clipped_mean, geometric_median, mix_rows, weighted_sum
from .scores import fraction_of, keep_lowest, mean_of, median_of, min_max, round_scores, std_of, z_scores
from .sketches import unit_sketches
from .transfers import read_together, upload

__all__ = [
    "clip_rows",
    "clipped_mean",
    "compute_dtype",
    "cosine",
    "cosine_distances",
    "cosines",
    "cosines_with",
    "count_groups",
    "density_clusters",
    "finite_rows",
    "fraction_of",
    "geometric_median",
    "keep_lowest",
    "kth_largest",
    "largest_mode",
    "low_frequencies",
    "majority_component",
    "manhattan_distances",
    "mean_near_median",
    "mean_of",
    "median",
    "median_of",
    "min_max",
    "mix_rows",
    "read_together",
    "rescale_rows",
    "round_scores",
    "row_norms",
    "sign_sum",
    "split_in_two",
    "squared_distances",
    "stays_finite",
    "std_of",
    "surely_count",
    "trimmed_mean",
    "unit_sketches",
    "upload",
    "weighted_sum",
    "z_scores",
]
