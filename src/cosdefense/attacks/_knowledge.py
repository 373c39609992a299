"""Which updates the malicious clients know, and the check of options that are one of several texts."""

from __future__ import annotations

from typing import Any, Literal, get_args

from jaxtyping import Bool
from torch import Tensor

Knowledge = Literal["full", "partial"]


def known_rows(malicious: Bool[Tensor, " n"], knowledge: Knowledge) -> Bool[Tensor, " n"]:
    """Select the updates from which the malicious clients estimate the honest ones.

    With full knowledge these are the honest updates, with partial knowledge the malicious clients' own. In a round
    without an honest client they are always their own.
    """
    full = knowledge == "full" and not bool(malicious.all())
    return ~malicious if full else malicious


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError unless the value is one of the texts of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {get_args(choices)}, got {value!r}")
