"""Weights & Biases: online, or offline for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ..catalog.extras import extra_libraries

with extra_libraries("wandb", "Weights & Biases", "wandb"):
    import wandb

from .tracker import Setting, Tracker


class WeightsAndBiases(Tracker):
    """Writes a run of `project`. `mode` is "online", "offline" or None: as WANDB_MODE says.

    With a `name`, a resumed run continues the W&B run of that name, which it cannot do offline. Without one, every
    start makes a new run.
    """

    def __init__(
        self,
        project: str = "cosdefense",
        name: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        folder: Path | str | None = None,
    ) -> None:
        self.project, self.name, self.mode, self.folder = project, name, mode, folder

    def begin(self, settings: Mapping[str, Setting]) -> int:
        self.run = wandb.init(
            project=self.project, name=self.name, id=self.name, resume="allow" if self.name else None,
            config=dict(settings), mode=self.mode, dir=None if self.folder is None else str(self.folder),
            reinit="create_new",  # several runs may be tracked at a time
            settings=wandb.Settings(console="off"),  # what a server prints may name its nodes
        )  # fmt: skip
        return int(self.run.step)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=number)

    def end(self) -> None:
        self.run.finish()
