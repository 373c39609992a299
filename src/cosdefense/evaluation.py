"""How good the global model is: accuracy, loss, and whether the attackers got what they wanted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from .attacks import Attack
from .client import channels_last
from .simulation import Pixels, pixels
from .task import Task

CHUNK = 1000  # images at a time, so that memory stays bounded


@dataclass(frozen=True)
class Evaluation:
    accuracy: float
    loss: float
    attack_success: float | None  # the share of images that got the label the attackers wanted


@torch.no_grad()
def evaluate(
    task: Task, params: Float[Tensor, " d"], images: Pixels, labels: Int[Tensor, " m"], attack: Attack, n_classes: int
) -> Evaluation:
    """Measured on test data, in evaluation mode."""
    correct = loss = hits = aimed = torch.zeros((), device=labels.device, dtype=torch.float64)
    for start in range(0, len(labels), CHUNK):
        batch, truth = pixels(images[start : start + CHUNK]), labels[start : start + CHUNK]
        logits = _logits(task, params, batch)
        correct = correct + (logits.argmax(dim=1) == truth).sum()
        loss = loss + cross_entropy(logits, truth, reduction="sum")
        aim = attack.aim(batch, truth, n_classes)
        if aim is not None:
            shown, wanted = aim
            answers = (logits if shown is batch else _logits(task, params, shown)).argmax(dim=1)
            hits = hits + (answers == wanted).sum()
            aimed = aimed + (wanted >= 0).sum()
    success = float(hits / aimed) if float(aimed) else None
    return Evaluation(float(correct) / len(labels), float(loss) / len(labels), success)


def _logits(task: Task, params: Tensor, images: Tensor) -> Tensor:
    return task.logits(params, channels_last(images) if images.device.type == "cpu" else images)
