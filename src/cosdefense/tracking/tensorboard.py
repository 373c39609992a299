"""TensorBoard: `tensorboard --logdir FOLDER` shows the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..catalog.extras import extra_libraries

with extra_libraries("tensorboard", "TensorBoard", "tensorboard"):
    from torch.utils.tensorboard import SummaryWriter

from .tracker import Setting, Tracker


class TensorBoard(Tracker):
    """Writes event files to `folder`, which should belong to this run alone.

    A resumed run is written again: TensorBoard then ignores what was there.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def begin(self, settings: Mapping[str, Setting]) -> int:
        self._writer = SummaryWriter(self.folder, purge_step=0)
        self._writer.add_text("settings", f"```json\n{json.dumps(dict(settings), indent=1)}\n```")
        return 0

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def end(self) -> None:
        self._writer.close()
