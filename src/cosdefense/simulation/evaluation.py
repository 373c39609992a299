"""How good the global model is: loss, accuracy and other metrics, for each client too; whether the attack succeeded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attacks import Attack
from ..core import ClientHook, use_seed
from ..data.dataset import IGNORED, Inputs, Owners, Targets
from ..ops import read_together
from ..training.batches import to_unit_range
from ..training.executor import to_channels_last
from ..training.losses import choose_classes, sum_loss
from ..training.metrics import Measure, Metric, accuracy
from ..training.task import Task
from ..training.threads import map_in_threads

CHUNK, GPU_CHUNK = 250, 2500  # samples at a time: memory stays bounded, and on a CPU activations fit its caches
GPU_PIXELS = 1 << 23  # of images on a GPU, if that is more: all 10,000 of MNIST
STATISTICS_BATCH = 1000  # images per batch where BatchNorm uses the statistics of the test images


@dataclass(frozen=True)
class Evaluation:
    accuracy: float  # the share of targets that got their class; NaN: they are values
    loss: float
    attack_success: float | None  # the fraction of targeted images that got the label the attack wants
    source_recall: float | None  # the fraction of those images, unchanged by the attack, that got their true label
    clean_target_rate: float | None  # where the attack changes images: the fraction that gets that label unchanged
    adversarial_accuracy: float | None  # on images changed by the adversary, if there is one
    batch_statistics_accuracy: float | None  # with BatchNorm's statistics from the test images, on request
    class_recalls: tuple[float, ...]  # the fraction of each class that got its label; NaN for one without images
    metrics: Mapping[str, float] = field(default_factory=dict)  # those asked for, by name
    # Accuracy, loss and those metrics on the test samples of each client, by name; NaN for a client without any.
    client_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@torch.no_grad()
def evaluate(
    task: Task,
    params: Float[Tensor, " d"],
    images: Inputs,
    labels: Targets,
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None = None,
    batch_statistics: bool = False,
    metrics: Sequence[Metric] = (),
    owners: Owners | None = None,
    n_clients: int = 0,
) -> Evaluation:
    """Evaluate a model on test data, in evaluation mode. The adversary changes images as a client hook does.

    `n_classes` is 0 where the labels are values. `owners` is the client of every sample, below `n_clients`: the model
    is then evaluated for each client, too. Samples of negative clients belong to nobody who takes part.
    """
    size = _choose_chunk(images, labels.device)
    chunks = list(zip(torch.split(images, size), torch.split(labels, size), strict=True))

    keeps_outputs = bool(metrics) or owners is not None

    def evaluate_chunk(task: Task, i: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        return _evaluate_chunk(task, params, *chunks[i], attack, n_classes, adversary, keeps_outputs)

    results = map_in_threads(task, evaluate_chunk, len(chunks), labels.device)
    correct_by_class = torch.stack([correct for _, correct, _ in results]).sum(dim=0)
    recalls = correct_by_class / _count_classes(labels, torch.ones_like(labels), n_classes) if n_classes else labels[:0]
    totals, class_recalls = _add_up([sums for sums, _, _ in results], recalls)
    targeted = totals["targeted"]
    outputs = torch.cat([outputs for _, _, outputs in results]) if keeps_outputs else None
    return Evaluation(
        accuracy=totals["correct"] / totals["counted"] if totals["counted"] else math.nan,
        loss=totals["loss"] / len(labels),
        attack_success=totals["hit"] / targeted if targeted else None,
        source_recall=totals["kept"] / targeted if targeted else None,
        clean_target_rate=totals["hit unchanged"] / totals["changed"] if totals["changed"] else None,
        adversarial_accuracy=None if adversary is None else totals["correct on adversarial"] / len(labels),
        batch_statistics_accuracy=(
            _accuracy_with_batch_statistics(task, params, images, labels) if batch_statistics else None
        ),
        class_recalls=tuple(class_recalls),
        metrics={} if outputs is None else {metric.name: metric.measure(outputs, labels) for metric in metrics},
        client_metrics=(
            {}
            if outputs is None or owners is None
            else evaluate_clients(task, outputs, labels, metrics, owners, n_clients, bool(n_classes))
        ),
    )


def _choose_chunk(images: Inputs, device: torch.device) -> int:
    """How many samples to evaluate at a time."""
    if device.type == "cpu":
        return CHUNK
    return max(GPU_CHUNK, GPU_PIXELS // images[0].numel()) if images.ndim == 4 else GPU_CHUNK


def evaluate_clients(
    task: Task,
    outputs: Float[Tensor, "m *outputs"],
    labels: Targets,
    metrics: Sequence[Metric],
    owners: Owners,
    n_clients: int,
    has_classes: bool,
) -> dict[str, tuple[float, ...]]:
    """How well the model serves each client: its metrics on the client's own test samples."""
    measures: dict[str, Measure] = {"accuracy": accuracy} if has_classes else {}
    measures |= {"loss": lambda found, wanted: float(task.loss_function(found, wanted))}
    measures |= {metric.name: metric.measure for metric in metrics}
    owners = owners.to(labels.device)
    own = [(owners == client).nonzero().flatten() for client in range(n_clients)]
    return {
        name: tuple(measure(outputs[rows], labels[rows]) if len(rows) else math.nan for rows in own)
        for name, measure in measures.items()
    }


def _evaluate_chunk(
    task: Task,
    params: Tensor,
    images: Inputs,
    truth: Tensor,
    attack: Attack,
    n_classes: int,
    adversary: ClientHook | None,
    keeps_outputs: bool,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Sums over one chunk by name, how many of each class are correct, and the outputs. They stay on the device."""
    batch = to_unit_range(images)
    logits = _logits(task, params, batch)
    sums = {"loss": sum_loss(task.loss_function, logits, truth)}
    kept = logits if keeps_outputs else logits[:0]
    if not n_classes:
        return sums, truth[:0], kept
    classes = choose_classes(logits, truth)
    correct = classes == truth
    sums |= {"correct": correct.sum(), "counted": (truth != IGNORED).sum()}
    aim = attack.prepare_evaluation(batch, truth, n_classes)
    if aim is not None:
        shown, wanted = aim
        answers = classes if shown is batch else choose_classes(_logits(task, params, shown), truth)
        sums["targeted"] = (wanted >= 0).sum()
        sums["hit"] = (answers == wanted).sum()
        if shown is not batch:
            sums["changed"] = sums["targeted"]
            sums["hit unchanged"] = (classes == wanted).sum()
        sums["kept"] = (correct & (wanted >= 0)).sum()
    if adversary is not None:
        changed, _ = adversary.batch(partial(task.loss, params), batch, truth)
        sums["correct on adversarial"] = (choose_classes(_logits(task, params, changed), truth) == truth).sum()
    return sums, _count_classes(truth, correct.long(), n_classes), kept


def _add_up(sums: Sequence[Mapping[str, Tensor]], recalls: Float[Tensor, " c"]) -> tuple[dict[str, float], list[float]]:
    """The totals by name, 0 for a name that is missing; and the recalls. One transfer for all: a GPU is waited for."""
    *numbers, by_class = read_together([*(value for chunk in sums for value in chunk.values()), recalls])
    values = iter(numbers)
    totals: dict[str, float] = defaultdict(float)
    for chunk in sums:
        for name in chunk:
            totals[name] += next(values)
    return totals, by_class


def _count_classes(
    labels: Int[Tensor, "m *places"], counted: Int[Tensor, "m *places"], n_classes: int
) -> Int[Tensor, " c"]:
    """As `torch.bincount` with weights, which would wait for a GPU."""
    counted = torch.where(labels == IGNORED, 0, counted).flatten()
    return labels.new_zeros(n_classes).scatter_add_(0, labels.clamp(min=0).flatten(), counted)


def _accuracy_with_batch_statistics(task: Task, params: Tensor, images: Inputs, labels: Tensor) -> float:
    """The accuracy where BatchNorm uses the statistics of the images it is given.

    A batch is every k-th image: a test set may be sorted by class, and statistics of a single class would mislead.
    """
    n_chunks = -(-len(labels) // STATISTICS_BATCH)
    n_correct = 0
    with use_seed(0, labels.device):  # dropout is active in training mode, and must be the same every time
        for start in range(n_chunks):
            batch = to_channels_last(to_unit_range(images[start::n_chunks]))
            truth = labels[start::n_chunks]
            answers = choose_classes(task.logits_with_batch_statistics(params, batch), truth)
            n_correct += int((answers == truth).sum())
    return n_correct / len(labels)


def _logits(task: Task, params: Tensor, images: Tensor) -> Tensor:
    # Otherwise cuDNN would rearrange weights and images for every convolution.
    return task.logits(params, to_channels_last(images), channels_last=params.device.type == "cuda")
