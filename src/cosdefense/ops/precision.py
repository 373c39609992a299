"""Which floating-point type to compute in."""

from __future__ import annotations

import torch

HALF = (torch.bfloat16, torch.float16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half-precision values, whose sums would lose nearly all digits; otherwise their own type."""
    return torch.float32 if dtype in HALF else dtype
