"""Vector maths shared by the parts; nothing here knows about clients or rounds.

Hostile rows may hold any finite number, so nothing here may cancel or return NaN for finite input.
Sums over coordinates run in float64 and in blocks: a float32 norm of eleven million coordinates is
off by 4e-4, and a float32 square overflows at 1e19. (Squared distances of float64 rows beyond 1e154
are infinite: as far away as can be, and still comparable.)

No kernel makes a copy of all rows: what it needs beside them is a block, a result, or n × n numbers.
"""

from .centers import clipped_mean, geometric_median, weighted_sum
from .coordinatewise import mean_near_median, median, trimmed_mean
from .distances import squared_distances
from .norms import cosine, cosines, finite_rows, rescaled, row_norms, stays_finite
from .scores import fraction_of, mean_of, median_of, min_max, std_of

__all__ = [
    "clipped_mean",
    "cosine",
    "cosines",
    "finite_rows",
    "fraction_of",
    "geometric_median",
    "mean_near_median",
    "mean_of",
    "median",
    "median_of",
    "min_max",
    "rescaled",
    "row_norms",
    "squared_distances",
    "stays_finite",
    "std_of",
    "trimmed_mean",
    "weighted_sum",
]
