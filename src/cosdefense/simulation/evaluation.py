"""How good the global model is: accuracy, loss, and whether the attackers got what they wanted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..attacks import Attack
from ..core import ClientHook, seeded
from ..training.batches import Pixels, pixels
from ..training.executor import channels_last
from ..training.task import Task
from ..training.threads import map_in_threads

CHUNK, GPU_CHUNK = 250, 2500  # images at a time: memory stays bounded, and a CPU's caches are of use
BATCH = 1000  # images whose statistics BatchNorm takes, where it is tested by those


@dataclass(frozen=True)
class Evaluation:
    accuracy: float
    loss: float
    attack_success: float | None  # the share of the images aimed at that got the label the attackers wanted
    source_recall: float | None  # the share of those images, as they really are, that got their true label
    adversarial_accuracy: float | None  # on images moved by the adversary, if there is one
    batch_statistics_accuracy: float | None  # with BatchNorm's statistics from the test images, if asked for
    class_recalls: tuple[float, ...]  # the share of each class that got its label; NaN for one without images


@torch.no_grad()
def evaluate(
    task: Task,
    params: Float[Tensor, " d"],
    images: Pixels,
    labels: Int[Tensor, " m"],
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None = None,
    batch_statistics: bool = False,
) -> Evaluation:
    """Measured on test data, in evaluation mode. The adversary moves the images as it would those of a client."""
    size = CHUNK if labels.device.type == "cpu" else GPU_CHUNK
    chunks = list(zip(torch.split(images, size), torch.split(labels, size), strict=True))

    def measure(task: Task, i: int) -> tuple[Counter[str], Tensor]:
        return _measured(task, params, *chunks[i], attack, n_classes, adversary)

    totals, found = Counter[str](), torch.zeros(n_classes, dtype=torch.long, device=labels.device)
    for counted, recognized in map_in_threads(task, measure, len(chunks), labels.device):
        totals.update(counted)
        found += recognized
    aimed = totals["aimed"]
    return Evaluation(
        accuracy=totals["right"] / len(labels),
        loss=totals["loss"] / len(labels),
        attack_success=totals["hit"] / aimed if aimed else None,
        source_recall=totals["kept"] / aimed if aimed else None,
        adversarial_accuracy=None if adversary is None else totals["withstood"] / len(labels),
        batch_statistics_accuracy=_by_batch(task, params, images, labels) if batch_statistics else None,
        class_recalls=tuple((found / torch.bincount(labels, minlength=n_classes)).tolist()),
    )


def _measured(
    task: Task,
    params: Tensor,
    images: Pixels,
    truth: Tensor,
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None,
) -> tuple[Counter[str], Tensor]:
    """What adds up over chunks: sums by name, and how many of each class were recognized."""
    totals: Counter[str] = Counter()  # counted on the CPU: one wait per chunk is nothing beside the forward pass
    batch = pixels(images)
    logits = _logits(task, params, batch)
    right = logits.argmax(dim=1) == truth
    totals["right"] = int(right.sum())
    totals["loss"] = float(cross_entropy(logits, truth, reduction="sum"))  # type: ignore[assignment]
    aim = attack.prepare_evaluation(batch, truth, n_classes)
    if aim is not None:
        shown, wanted = aim
        answers = (logits if shown is batch else _logits(task, params, shown)).argmax(dim=1)
        totals["aimed"] = int((wanted >= 0).sum())
        totals["hit"] = int((answers == wanted).sum())
        totals["kept"] = int((right & (wanted >= 0)).sum())
    if adversary is not None:
        moved, _ = adversary.batch(partial(task.loss, params), batch, truth)
        totals["withstood"] = int((_logits(task, params, moved).argmax(dim=1) == truth).sum())
    return totals, torch.bincount(truth[right], minlength=n_classes)


def _by_batch(task: Task, params: Tensor, images: Pixels, labels: Tensor) -> float:
    """Accuracy with the statistics of the images at hand.

    A chunk is every k-th image: test sets sorted by class exist, and statistics of a single class would mislead.
    """
    n_chunks = -(-len(labels) // BATCH)
    right = 0
    with seeded(0, labels.device):  # dropout is at work in training mode, and must be the same every time
        for start in range(n_chunks):
            batch = channels_last(pixels(images[start::n_chunks]))
            right += int((task.logits_by_batch(params, batch).argmax(dim=1) == labels[start::n_chunks]).sum())
    return right / len(labels)


def _logits(task: Task, params: Tensor, images: Tensor) -> Tensor:
    return task.logits(params, channels_last(images))
