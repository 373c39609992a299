"""What a helper must not forget when it is restarted: which rounds were settled, and on which model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .durable import replace_file


class BrokenState(ValueError):
    """A state file that cannot be read. The helper does not start: it could settle a round twice."""


@dataclass(frozen=True)
class HelperState:
    """Written before a ticket or a sum leaves the helper.

    Args:
        issued: The number of the last ticket.
        settled: The number of the last settled round.
        model: The digest of the model of that round, as text.
        settlements: How many rounds were settled on that model.
        memory: The running median norm, if a norm limit is used.
        before: What it was before the last settled round.
    """

    issued: int = 0
    settled: int = 0
    model: str = ""
    settlements: int = 0
    memory: float | None = None
    before: float | None = None

    @classmethod
    def load(cls, path: Path | None) -> HelperState:
        """The saved state. A file that does not exist is the state before the first round."""
        if path is None or not path.exists():
            return cls()
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BrokenState(f"{path} cannot be read: {error}") from error
        kinds: dict[str, tuple[type, ...]] = {"issued": (int,), "settled": (int,), "model": (str,)}
        kinds |= {"settlements": (int,), "memory": (float, type(None)), "before": (float, type(None))}
        if not isinstance(table, dict) or set(table) != {field.name for field in fields(cls)}:
            raise BrokenState(f"{path} is not a helper's state: it needs the keys {sorted(kinds)}")
        for name, allowed in kinds.items():
            if type(table[name]) not in allowed:
                raise BrokenState(f"{path}: {name} has the wrong type: {type(table[name]).__name__}")
        state = cls(**table)
        if not 0 <= state.settled <= state.issued < 2**63 or state.settlements < 0:
            raise BrokenState(f"{path}: settled rounds must be among the issued ones, got {state}")
        for norm in (state.memory, state.before):
            if norm is not None and not 0 < norm < math.inf:
                raise BrokenState(f"{path}: memory and before must be positive numbers, got {norm}")
        return state

    def save(self, path: Path | None) -> None:
        if path is not None:
            replace_file(path, json.dumps(asdict(self)))
