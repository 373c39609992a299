"""Work in threads gives the numbers of work in turn, to the bit, and leaves no trace."""

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
from cosdefense.training.executor import channels_last, train_clients
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.task import Task
from cosdefense.training.threads import MOST, _lasted, map_in_threads

CPU = torch.device("cpu")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """More than one thread for a while, however quick the work is."""
    monkeypatch.setattr("cosdefense.training.threads.QUICK", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def task_of(*layers: nn.Module) -> Task:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3)
    return Task.of(
        nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), *layers, nn.Flatten(), nn.Linear(216, 5)), mean=(0.4,)
    )


def clients(n: int = 8, steps: int = 2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(n, steps, 8, 3, 8, 8, generator=rng), torch.randint(0, 5, (n, steps, 8), generator=rng)


def in_turn(task: Task, trainer: LocalSGD, start: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """One after the other, each operation on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.stack([trainer(task, start, channels_last(x), y) for x, y in zip(images, labels, strict=True)])
    finally:
        torch.set_num_threads(before)


def numbers() -> tuple[int, ...]:
    """The threads that torch, OpenMP and, where it is there, MKL would use now."""
    found = re.findall(r"(?:omp|mkl)_get_max_threads\(\)\s*:\s*(\d+)", torch.__config__.parallel_info())
    return torch.get_num_threads(), *map(int, found)


def test_pieces_are_done_at_the_same_time_and_come_back_in_order(threads: int) -> None:
    together = threading.Barrier(threads, timeout=60)

    def work(task: Task, i: int) -> int:
        together.wait()  # for ever, if there were fewer at a time
        time.sleep(0.01 * (threads - i % threads))
        return i * i

    assert map_in_threads(task_of(), work, 3 * threads, CPU) == [i * i for i in range(3 * threads)]


@pytest.mark.parametrize(("given", "n", "each"), [(4, 12, 1), (4, 2, 2), (4, 3, 1), (4 * MOST, 100, 4)])
def test_threads_are_divided_among_the_pieces_and_given_back(given: int, n: int, each: int, threads: int) -> None:
    torch.set_num_threads(given)
    seen = set(map_in_threads(task_of(), lambda task, i: numbers(), n, CPU))
    assert {number for of_one in seen for number in of_one} == {each}
    assert set(numbers()) == {given}
    with ThreadPoolExecutor(1) as later:
        assert set(later.submit(numbers).result()) == {given}


@pytest.mark.parametrize("why", ["one thread", "one piece", "gpu"])
def test_without_need_there_are_no_threads(why: str, threads: int) -> None:
    if why == "one thread":
        torch.set_num_threads(1)
    task, device = task_of(), torch.device("cuda" if why == "gpu" else "cpu")

    def work(own: Task, i: int) -> tuple[bool, threading.Thread]:
        return own is task, threading.current_thread()

    found = map_in_threads(task, work, 1 if why == "one piece" else 5, device)
    assert set(found) == {(True, threading.current_thread())}


def test_every_thread_has_a_task_and_the_callers_mode(threads: int) -> None:
    together = threading.Barrier(threads, timeout=60)

    def work(own: Task, i: int) -> tuple[Task, bool]:
        together.wait()
        return own, torch.is_grad_enabled()

    with torch.no_grad():
        found = map_in_threads(task_of(), work, threads, CPU)
    assert len({id(own.training) for own, _ in found}) == threads
    assert not any(grad for _, grad in found)
    assert all(grad for _, grad in map_in_threads(task_of(), work, threads, CPU))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [ValueError("piece 20"), KeyboardInterrupt()], ids=["failure", "ctrl-c"])
def test_an_end_before_the_end(problem: BaseException, threads: int) -> None:
    """A failure in a thread, and Ctrl-C, which comes to the first one: both are seen, and nothing more is begun."""
    begun = []

    def work(task: Task, i: int) -> None:
        begun.append(i)
        if i == 20 and isinstance(problem, KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        elif i == 20:
            raise problem
        time.sleep(0.05)

    with pytest.raises(type(problem), match=str(problem) or None):
        map_in_threads(task_of(), work, 1000, CPU)
    assert len(begun) < 500
    assert torch.get_num_threads() == threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]


def test_quick_work_needs_no_threads_the_next_time(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosdefense.training.threads.QUICK", math.inf)
    task, here = task_of(), threading.current_thread()

    def work(own: Task, i: int) -> tuple[bool, int]:
        return threading.current_thread() is here, torch.get_num_threads()

    def other(own: Task, i: int) -> bool:
        return threading.current_thread() is here

    assert set(map_in_threads(task, work, 2 * threads, CPU)) == {(False, 1)}  # nobody knows yet
    assert set(map_in_threads(task, work, 2 * threads, CPU)) == {(True, 1)}  # and each as many threads as before
    assert torch.get_num_threads() == threads
    assert not any(map_in_threads(task, other, threads, CPU))  # of other work,
    assert not any(
        found for found, _ in map_in_threads(task_of(), work, threads, CPU)
    )  # or a larger model, nobody knows
    monkeypatch.setattr("cosdefense.training.threads.QUICK", 0.0)
    assert {found for found, _ in map_in_threads(task, work, 2, CPU)} == {False}  # no longer quick


@pytest.mark.parametrize("pieces", [8, 64])
def test_waiting_for_the_interpreter_is_not_counted(pieces: int, threads: int) -> None:
    """Pieces that only Python works on take as long as all of them, side by side: each must not seem as long."""

    def work(own: Task, i: int) -> int:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return i

    task = task_of()
    assert map_in_threads(task, work, pieces, CPU) == list(range(pieces))
    (seconds,) = _lasted[task].values()
    assert 0.002 <= seconds < 0.004


@pytest.mark.parametrize("hooks", [(), (AdversarialTraining(0.1, steps=2),)], ids=["plain", "adversarial"])
@pytest.mark.parametrize("quick", [0.0, math.inf], ids=["in threads", "then here"])
def test_clients_find_the_same_bits_round_after_round(
    hooks: tuple[ClientHook, ...], quick: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosdefense.training.threads.QUICK", quick)
    task, trainer = task_of(), LocalSGD(0.1, momentum=0.5, weight_decay=0.01, hooks=hooks)
    (images, labels), start = clients(), task.initial()
    for _ in range(4):
        expected = in_turn(task, trainer, start, images, labels)
        found = train_clients(task, trainer, start, images, labels)
        assert torch.equal(found, expected)
        start = start + found.mean(dim=0)
    assert float((start - task.initial()).abs().max()) > 0.1
    assert torch.equal(task.initial(), task_of().initial())  # the skeletons are as they were


@dataclass(frozen=True)
class SeldomNoisy(ClientHook):
    """Only who has a very bright first pixel draws."""

    def batch(self, loss: object, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return (images + torch.rand_like(images) if float(images.flatten()[0]) > 2 else images), labels


@pytest.mark.parametrize(
    ("layers", "hook"),
    [((nn.Dropout(0.5),), ClientHook()), ((), FLWBC()), ((), SeldomNoisy())],
    ids=["dropout", "fl-wbc", "the last one"],
)
@pytest.mark.parametrize("quick", [0.0, math.inf], ids=["in threads", "then here"])
def test_who_draws_waits_for_its_turn(
    layers: tuple[nn.Module, ...], hook: ClientHook, quick: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosdefense.training.threads.QUICK", quick)
    task, trainer, (images, labels) = task_of(*layers), LocalSGD(0.1, hooks=(hook,)), clients()
    train_clients(task, LocalSGD(0.1), task.initial(), images, labels)  # the same kind of work, that does not draw
    images[-1, 0, 0, 0, 0, 0] = 3
    torch.manual_seed(7)
    expected, after = in_turn(task, trainer, task.initial(), images, labels), torch.get_rng_state()
    seen = []
    for _ in range(2):
        torch.manual_seed(7)
        found = train_clients(task, trainer, task.initial(), images, labels)
        assert torch.allclose(found, expected, atol=1e-6)  # in turn, but by several threads
        assert torch.equal(torch.get_rng_state(), after)
        seen.append(found)
    assert torch.equal(*seen)


def test_an_evaluation_is_the_same_on_any_number_of_threads(threads: int) -> None:
    task, rng = task_of(), torch.Generator().manual_seed(2)
    n = 7 * CHUNK + 3
    images, labels = torch.rand(n, 3, 8, 8, generator=rng), torch.randint(0, 5, (n,), generator=rng)
    found = []
    for number in (1, 2, 3, threads):
        torch.set_num_threads(number)
        attack, adversary = Backdoor(target=3, size=2), AdversarialTraining(0.1, steps=2)
        found.append(evaluate(task, task.initial(), images, labels, attack, 5, adversary))
    assert found[0] == found[1] == found[2] == found[3]
    assert 0 < found[0].accuracy < 1
    assert found[0].adversarial_accuracy != found[0].accuracy
