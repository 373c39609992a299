"""Work in threads gives the numbers of work in order, to the bit, and leaves no setting changed."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from cosdefense import ClientHook
from cosdefense.attacks import Backdoor
from cosdefense.hooks import FLWBC, AdversarialTraining
from cosdefense.simulation.evaluation import CHUNK, evaluate
from cosdefense.training.executor import to_channels_last, train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task
from cosdefense.training.threads import MAX_WORKERS, map_in_threads

CPU = torch.device("cpu")


@pytest.fixture
def threads() -> Iterator[int]:
    """Four threads for torch during a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def make_task(*layers: nn.Module) -> Task:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3)
    return Task.of(
        nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), *layers, nn.Flatten(), nn.Linear(216, 5)), mean=(0.4,)
    )


def make_batches(n: int = 8, steps: int = 2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(n, steps, 8, 3, 8, 8, generator=rng), torch.randint(0, 5, (n, steps, 8), generator=rng)


def train_in_order(task: Task, trainer: LocalSGD, start: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """One client after the other, each operation on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.stack(
            [trainer(task, start, to_channels_last(x, 2), y) for x, y in zip(images, labels, strict=True)]
        )
    finally:
        torch.set_num_threads(before)


def thread_counts() -> tuple[int, ...]:
    """The threads that torch, OpenMP and, where it is there, MKL would use now."""
    counts = re.findall(r"(?:omp|mkl)_get_max_threads\(\)\s*:\s*(\d+)", torch.__config__.parallel_info())
    return torch.get_num_threads(), *map(int, counts)


def test_pieces_run_at_the_same_time_and_results_are_in_order(threads: int) -> None:
    barrier = threading.Barrier(threads, timeout=300)

    def work(task: Task, i: int) -> int:
        barrier.wait()  # would time out if fewer ran at a time
        time.sleep(0.01 * (threads - i % threads))
        return i * i

    assert map_in_threads(make_task(), work, 3 * threads, CPU) == [i * i for i in range(3 * threads)]


@pytest.mark.parametrize(("given", "n", "each"), [(4, 12, 1), (4, 2, 2), (4, 3, 1), (4 * MAX_WORKERS, 100, 4)])
def test_threads_are_divided_among_the_pieces_and_restored(given: int, n: int, each: int, threads: int) -> None:
    torch.set_num_threads(given)
    seen = set(map_in_threads(make_task(), lambda task, i: thread_counts(), n, CPU))
    assert {count for counts in seen for count in counts} == {each}
    assert set(thread_counts()) == {given}
    with ThreadPoolExecutor(1) as later:
        assert set(later.submit(thread_counts).result()) == {given}


@pytest.mark.parametrize("reason", ["one thread", "one piece", "gpu"])
def test_no_threads_are_started_without_need(reason: str, threads: int) -> None:
    if reason == "one thread":
        torch.set_num_threads(1)
    task, device = make_task(), torch.device("cuda" if reason == "gpu" else "cpu")

    def work(own_task: Task, i: int) -> tuple[bool, threading.Thread]:
        return own_task is task, threading.current_thread()

    results = map_in_threads(task, work, 1 if reason == "one piece" else 5, device)
    assert set(results) == {(True, threading.current_thread())}


def test_every_thread_has_its_own_task_and_the_callers_gradient_mode(threads: int) -> None:
    barrier = threading.Barrier(threads, timeout=300)

    def work(own_task: Task, i: int) -> tuple[Task, bool]:
        barrier.wait()
        return own_task, torch.is_grad_enabled()

    with torch.no_grad():
        results = map_in_threads(make_task(), work, threads, CPU)
    assert len({id(own_task.training_model) for own_task, _ in results}) == threads
    assert not any(grad for _, grad in results)
    assert all(grad for _, grad in map_in_threads(make_task(), work, threads, CPU))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [ValueError("piece 20"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
@pytest.mark.parametrize("in_threads", [True, False], ids=["in threads", "in the caller"])
def test_failures_and_ctrl_c_end_the_work_and_restore_the_settings(
    problem: BaseException, in_threads: bool, threads: int
) -> None:
    started, failing, task = [], False, make_task()

    def work(task: Task, i: int) -> None:
        started.append(i)
        if failing and i == 20:
            if isinstance(problem, KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise problem
        time.sleep(0.05 if failing else 0.0)

    min_seconds = 0.0 if in_threads else math.inf
    map_in_threads(task, work, 8, CPU, min_seconds)  # short work runs in the caller from the second time on
    started.clear()
    failing, before = True, signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have ignored it
    try:
        with pytest.raises(type(problem), match=str(problem) or None):
            map_in_threads(task, work, 1000, CPU, min_seconds)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(started) < 500
    assert set(thread_counts()) == {threads}
    assert torch.is_grad_enabled()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_short_work_runs_in_the_caller_the_next_time(threads: int) -> None:
    task, caller = make_task(), threading.current_thread()

    def work(own_task: Task, i: int) -> tuple[bool, int]:
        return threading.current_thread() is caller, torch.get_num_threads()

    def other_work(own_task: Task, i: int) -> bool:
        return threading.current_thread() is caller

    assert set(map_in_threads(task, work, 2 * threads, CPU, math.inf)) == {(False, 1)}  # not measured yet
    assert set(map_in_threads(task, work, 2 * threads, CPU, math.inf)) == {(True, 1)}  # with as many threads each
    assert torch.get_num_threads() == threads
    assert not any(map_in_threads(task, other_work, threads, CPU, math.inf))  # other work is not measured yet,
    assert not any(
        inside for inside, _ in map_in_threads(make_task(), work, threads, CPU, math.inf)
    )  # nor another task
    assert {inside for inside, _ in map_in_threads(task, work, 2, CPU, 0.0)} == {False}  # no longer short


@pytest.mark.parametrize("pieces", [8, 64])
def test_waiting_for_the_interpreter_is_not_counted(pieces: int, threads: int) -> None:
    """Pieces of pure Python take 2 ms each and wait for each other. They count as shorter than 4 ms, not than 2 ms."""
    caller = threading.current_thread()

    def work(own_task: Task, i: int) -> bool:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return threading.current_thread() is caller

    task = make_task()
    assert not any(map_in_threads(task, work, pieces, CPU))
    assert not any(map_in_threads(task, work, pieces, CPU, min_seconds=0.002))
    assert all(map_in_threads(task, work, pieces, CPU, min_seconds=0.004))


@pytest.mark.parametrize(
    "hooks",
    [(), pytest.param((AdversarialTraining(0.1, steps=2),), marks=pytest.mark.slow)],
    ids=["plain", "adversarial"],
)
def test_clients_get_the_same_bits_round_after_round(hooks: tuple[ClientHook, ...], threads: int) -> None:
    """In threads (a new task is not measured yet), and however the same task trains from the second round on."""
    task, trainer = make_task(), LocalSGD(0.1, momentum=0.5, weight_decay=0.01, hooks=hooks)
    (images, labels), start = make_batches(), task.initial()
    for _ in range(4):
        expected = train_in_order(task, trainer, start, images, labels)
        assert torch.equal(train_clients(make_task(), trainer, start, images, labels), expected)
        updates = train_clients(task, trainer, start, images, labels)
        assert torch.equal(updates, expected)
        start = start + updates.mean(dim=0)
    assert float((start - task.initial()).abs().max()) > 0.1
    assert torch.equal(task.initial(), make_task().initial())  # training leaves the task's own tensors alone


@dataclass(frozen=True)
class SeldomNoisy(ClientHook):
    """Only a client with a very bright first pixel draws random numbers."""

    def batch(self, loss: object, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return (images + torch.rand_like(images) if float(images.flatten()[0]) > 2 else images), labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "hook"),
    [((nn.Dropout(0.5),), ClientHook()), ((), FLWBC()), ((), SeldomNoisy())],
    ids=["dropout", "fl-wbc", "the last client"],
)
def test_clients_that_draw_random_numbers_train_in_order(
    layers: tuple[nn.Module, ...], hook: ClientHook, threads: int
) -> None:
    task, trainer, (images, labels) = make_task(*layers), LocalSGD(0.1, hooks=(hook,)), make_batches()
    train_clients(task, LocalSGD(0.1), task.initial(), images, labels)  # the same kind of work, without drawing
    images[-1, 0, 0, 0, 0, 0] = 3
    torch.manual_seed(7)
    expected, after = train_in_order(task, trainer, task.initial(), images, labels), torch.get_rng_state()
    results = []
    for own_task in (task, task, make_task(*layers)):
        torch.manual_seed(7)
        updates = train_clients(own_task, trainer, task.initial(), images, labels)
        assert torch.allclose(updates, expected, atol=1e-6)  # in order, but each operation on several threads
        assert torch.equal(torch.get_rng_state(), after)
        results.append(updates)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("min_seconds", [0.0, math.inf], ids=["in threads", "in the caller"])
def test_random_numbers_are_those_of_work_in_order(min_seconds: float, threads: int) -> None:
    """The last piece draws: by then others may be done, and their results are thrown away."""
    task = make_task()

    def work(own_task: Task, i: int) -> float:
        return float(torch.rand(1)) if i == 11 else float(i)

    def short_work(own_task: Task, i: int) -> float:
        return work(own_task, i) if drawing else 0.0

    drawing = False
    map_in_threads(task, short_work, 12, CPU, min_seconds)
    drawing = True
    torch.manual_seed(7)
    expected = float(torch.rand(1))
    torch.manual_seed(7)
    assert map_in_threads(task, short_work, 12, CPU, min_seconds) == [*map(float, range(11)), expected]


@pytest.mark.slow
def test_an_evaluation_is_the_same_on_any_number_of_threads(threads: int) -> None:
    task, rng = make_task(), torch.Generator().manual_seed(2)
    n = 7 * CHUNK + 3
    images, labels = torch.rand(n, 3, 8, 8, generator=rng), torch.randint(0, 5, (n,), generator=rng)
    results = []
    for count in (1, 2, 3, threads):
        torch.set_num_threads(count)
        attack, adversary = Backdoor(target=3, size=2), AdversarialTraining(0.1, steps=2)
        results.append(evaluate(task, task.initial(), images, labels, attack, 5, adversary))
    assert results[0] == results[1] == results[2] == results[3]
    assert 0 < results[0].accuracy < 1
    assert results[0].adversarial_accuracy != results[0].accuracy
