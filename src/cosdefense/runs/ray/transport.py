"""Where runs on other machines leave what they have written, and hear when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Parcel:
    """What a run has written since its last parcel."""

    offset: int  # where in records.jsonl the lines begin; 0: they are the whole file
    lines: bytes
    files: Mapping[str, bytes]  # other files of its folder that are new, whole
    notes: tuple[str, ...] = ()  # what it wants to say to the user


class Inbox:
    """Lives in a process of its own beside the driver, which cannot be called itself."""

    def __init__(self) -> None:
        self._parcels: list[tuple[int, Parcel]] = []
        self._stopping = False

    def post(self, sender: int, parcel: Parcel) -> bool:
        """Leave a parcel. Whether the sender shall stop."""
        self._parcels.append((sender, parcel))
        return self._stopping

    def collect(self) -> list[tuple[int, Parcel]]:
        """Everything left since the last time, in order."""
        parcels, self._parcels = self._parcels, []
        return parcels

    def stop(self) -> None:
        """From now on every sender hears that it shall stop."""
        self._stopping = True
