"""The discrete cosine transform, which torch does not have."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def low_frequencies(vector: Float[Tensor, " k"], keep: int) -> Float[Tensor, " keep"]:
    """The first `keep` coefficients, at most half of all, of the orthonormal DCT-II, in float64.

    By a Fourier transform of the even entries followed by the odd ones backwards: J. Makhoul. A fast cosine transform
    in one and two dimensions. 1980.
    """
    size = len(vector)
    wide = vector.detach().double()
    spectrum = torch.fft.rfft(torch.cat([wide[::2], wide[1::2].flip(0)]))[:keep]
    phase = torch.arange(keep, dtype=torch.float64, device=vector.device) * (-math.pi / (2 * size))
    result: Tensor = (spectrum * torch.polar(torch.ones_like(phase), phase)).real * math.sqrt(2 / size)
    result[0] *= math.sqrt(0.5)
    return result
