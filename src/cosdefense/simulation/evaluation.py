"""How good the global model is: accuracy, loss, and whether the attack succeeded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..attacks import Attack
from ..core import ClientHook, use_seed
from ..training.batches import Images, to_unit_range
from ..training.executor import to_channels_last
from ..training.task import Task
from ..training.threads import map_in_threads

CHUNK, GPU_CHUNK = 250, 2500  # images at a time: memory stays bounded, and on a CPU activations fit its caches
STATISTICS_BATCH = 1000  # images per batch where BatchNorm uses the statistics of the test images


@dataclass(frozen=True)
class Evaluation:
    accuracy: float
    loss: float
    attack_success: float | None  # the fraction of targeted images that got the label the attack wants
    source_recall: float | None  # the fraction of those images, unchanged by the attack, that got their true label
    clean_target_rate: float | None  # where the attack changes images: the fraction that gets that label unchanged
    adversarial_accuracy: float | None  # on images changed by the adversary, if there is one
    batch_statistics_accuracy: float | None  # with BatchNorm's statistics from the test images, on request
    class_recalls: tuple[float, ...]  # the fraction of each class that got its label; NaN for one without images


@torch.no_grad()
def evaluate(
    task: Task,
    params: Float[Tensor, " d"],
    images: Images,
    labels: Int[Tensor, " m"],
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None = None,
    batch_statistics: bool = False,
) -> Evaluation:
    """Evaluate a model on test data, in evaluation mode. The adversary changes images as a client hook does."""
    size = CHUNK if labels.device.type == "cpu" else GPU_CHUNK
    chunks = list(zip(torch.split(images, size), torch.split(labels, size), strict=True))

    def evaluate_chunk(task: Task, i: int) -> tuple[dict[str, Tensor], Tensor]:
        return _evaluate_chunk(task, params, *chunks[i], attack, n_classes, adversary)

    results = map_in_threads(task, evaluate_chunk, len(chunks), labels.device)
    totals = _add_up([sums for sums, _ in results])
    correct_by_class = torch.stack([correct for _, correct in results]).sum(dim=0)
    recalls = correct_by_class / _count_classes(labels, torch.ones_like(labels), n_classes)
    targeted = totals["targeted"]
    return Evaluation(
        accuracy=totals["correct"] / len(labels),
        loss=totals["loss"] / len(labels),
        attack_success=totals["hit"] / targeted if targeted else None,
        source_recall=totals["kept"] / targeted if targeted else None,
        clean_target_rate=totals["hit unchanged"] / totals["changed"] if totals["changed"] else None,
        adversarial_accuracy=None if adversary is None else totals["correct on adversarial"] / len(labels),
        batch_statistics_accuracy=(
            _accuracy_with_batch_statistics(task, params, images, labels) if batch_statistics else None
        ),
        class_recalls=tuple(recalls.tolist()),
    )


def _evaluate_chunk(
    task: Task,
    params: Tensor,
    images: Images,
    truth: Tensor,
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Sums over one chunk by name, and how many of each class are correct. They stay on the device."""
    batch = to_unit_range(images)
    logits = _logits(task, params, batch)
    correct = logits.argmax(dim=1) == truth
    sums = {"correct": correct.sum(), "loss": cross_entropy(logits, truth, reduction="sum")}
    aim = attack.prepare_evaluation(batch, truth, n_classes)
    if aim is not None:
        shown, wanted = aim
        answers = (logits if shown is batch else _logits(task, params, shown)).argmax(dim=1)
        sums["targeted"] = (wanted >= 0).sum()
        sums["hit"] = (answers == wanted).sum()
        if shown is not batch:
            sums["changed"] = sums["targeted"]
            sums["hit unchanged"] = (logits.argmax(dim=1) == wanted).sum()
        sums["kept"] = (correct & (wanted >= 0)).sum()
    if adversary is not None:
        changed, _ = adversary.batch(partial(task.loss, params), batch, truth)
        sums["correct on adversarial"] = (_logits(task, params, changed).argmax(dim=1) == truth).sum()
    return sums, _count_classes(truth, correct.long(), n_classes)


def _add_up(sums: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The totals by name, 0 for a name that is missing. One transfer for all: each makes the host wait for a GPU."""
    values = iter(torch.stack([value.double() for chunk in sums for value in chunk.values()]).tolist())
    totals: dict[str, float] = defaultdict(float)
    for chunk in sums:
        for name in chunk:
            totals[name] += next(values)
    return totals


def _count_classes(labels: Int[Tensor, " m"], counted: Int[Tensor, " m"], n_classes: int) -> Int[Tensor, " c"]:
    """As `torch.bincount` with weights, which would wait for a GPU."""
    return labels.new_zeros(n_classes).scatter_add_(0, labels, counted)


def _accuracy_with_batch_statistics(task: Task, params: Tensor, images: Images, labels: Tensor) -> float:
    """The accuracy where BatchNorm uses the statistics of the images it is given.

    A batch is every k-th image: a test set may be sorted by class, and statistics of a single class would mislead.
    """
    n_chunks = -(-len(labels) // STATISTICS_BATCH)
    n_correct = 0
    with use_seed(0, labels.device):  # dropout is active in training mode, and must be the same every time
        for start in range(n_chunks):
            batch = to_channels_last(to_unit_range(images[start::n_chunks]))
            answers = task.logits_with_batch_statistics(params, batch).argmax(dim=1)
            n_correct += int((answers == labels[start::n_chunks]).sum())
    return n_correct / len(labels)


def _logits(task: Task, params: Tensor, images: Tensor) -> Tensor:
    # Otherwise cuDNN would rearrange weights and images for every convolution.
    return task.logits(params, to_channels_last(images), channels_last=params.device.type == "cuda")
