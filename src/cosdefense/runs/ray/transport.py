"""How runs on other machines send what they have written, and learn when to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Upload:
    """What a run has written since its last upload."""

    offset: int  # where in the records the lines begin; 0: they are all there are
    lines: bytes
    files: Mapping[str, bytes]  # other files of its folder that are new, whole
    notes: tuple[str, ...] = ()  # messages for the user


class Inbox:
    """A Ray actor beside the driver, which cannot be called itself: it keeps uploads until the driver takes them."""

    def __init__(self) -> None:
        self._uploads: list[tuple[int, Upload]] = []
        self._stopping = False

    def post(self, sender: int, upload: Upload) -> bool:
        """Leave an upload. Returns whether the sender must stop."""
        self._uploads.append((sender, upload))
        return self._stopping

    def take(self) -> list[tuple[int, Upload]]:
        """Everything posted since the last call, in order."""
        uploads, self._uploads = self._uploads, []
        return uploads

    def stop(self) -> None:
        """From now on every sender is asked to stop."""
        self._stopping = True
