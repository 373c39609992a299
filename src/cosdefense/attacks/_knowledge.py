"""What attackers know of the honest clients' updates, and how their options are checked."""

from __future__ import annotations

from typing import Any, Literal, get_args

from jaxtyping import Bool
from torch import Tensor

Knowledge = Literal["full", "partial"]


def known_rows(malicious: Bool[Tensor, " n"], knowledge: Knowledge) -> Bool[Tensor, " n"]:
    """Whose honest updates the attackers go by; their own where there is no honest client to know."""
    full = knowledge == "full" and not bool(malicious.all())
    return ~malicious if full else malicious


def check_choice(name: str, value: object, choices: Any) -> None:
    """Whether an option is one of the texts of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {get_args(choices)}, got {value!r}")
