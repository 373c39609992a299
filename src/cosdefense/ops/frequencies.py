"""The discrete cosine transform, which torch does not have."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 1 << 21  # numbers that are transformed at a time: every call plans its transform anew


def low_frequencies(
    rows: Float[Tensor, "n k"], keep: int, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "n keep"]:
    """The first `keep` coefficients, at most half of all, of the orthonormal DCT-II of every row.

    They are computed in float64; what is too large for `dtype` becomes its largest number. By a Fourier transform of
    the even entries followed by the odd ones backwards: J. Makhoul. A fast cosine transform in one and two dimensions.
    1980.
    """
    size, largest = rows.shape[1], torch.finfo(dtype).max
    phase = torch.arange(keep, dtype=torch.float64, device=rows.device) * (math.pi / (2 * size))
    scale = torch.full_like(phase, math.sqrt(2 / size))
    scale[0] = math.sqrt(1 / size)
    cosines, sines = scale * phase.cos(), scale * phase.sin()
    result = rows.new_empty(len(rows), keep, dtype=dtype)
    n_rows = max(1, BLOCK // size)
    for target, block in zip(torch.split(result, n_rows), torch.split(rows.detach(), n_rows), strict=True):
        wide = torch.cat([block[:, ::2], block[:, 1::2].flip(1)], dim=1).double()
        spectrum = torch.fft.rfft(wide)[:, :keep]
        values = spectrum.real * cosines + spectrum.imag * sines
        target.copy_(values.clamp_(-largest, largest))
    return result
