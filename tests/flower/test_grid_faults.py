"""Faults of the transport: one bad reply does not affect the others, and a round never exceeds its deadline."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from federations import NODES, Behave, LocalGrid, honest, model, record, to_arrays
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from strategies import STRATEGIES

from cosdefense.filters import Clip, MultiKrum
from cosdefense.flower import Defended, PullLimits, SuperLinkLost
from cosdefense.flower.guarded_grid import GuardedGrid, get_next_poll, get_pull_seconds
from cosdefense.runs.records import read_run
from cosdefense.runs.run_folder import RunFolder

ACCEPT_ALL = Clip(1e9)
HANG = threading.Event()
SHORT = PullLimits(poll_interval=0.05)


@pytest.fixture(autouse=True)
def release_pulls() -> Iterator[None]:
    """End all hanging pulls after a test."""
    HANG.clear()
    yield
    HANG.set()
    for thread in pull_threads():
        thread.join(60)


def pull_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cosdefense-pull"]


def replace_behavior(nodes: Iterable[int], instead: Behave) -> Behave:
    chosen = frozenset(nodes)
    return lambda message: (instead if message.metadata.dst_node_id in chosen else honest)(message)


def hang(message: Message) -> Message:
    HANG.wait()
    return honest(message)


def run_federation(
    behave: Behave, rounds: int = 1, deadline: float = 60.0, limits: PullLimits = SHORT
) -> tuple[Defended, LocalGrid]:
    """Run some rounds, of which none may be skipped."""
    strategy = FedAvg(min_train_nodes=8, min_available_nodes=8, fraction_evaluate=0.0)
    defended = Defended(strategy, ACCEPT_ALL, deadline=deadline, seed=2, pull_limits=limits)
    grid = LocalGrid(behave)
    result = defended.start(grid, record(model()), num_rounds=rounds)
    assert all(metrics["cosdefense-skipped"] == 0 for metrics in result.train_metrics_clientapp.values())
    return defended, grid


def get_reasons(defended: Defended) -> list[str]:
    assert defended.record is not None
    return sorted(reason for reason in defended.record.reasons if reason)


def test_an_unreadable_reply_does_not_affect_the_others() -> None:
    defended, _ = run_federation(replace_behavior(NODES[:2], lambda _: ValueError("bad\nbytes")))
    assert get_reasons(defended) == ["unreadable", "unreadable"]


def test_a_pull_that_fails_once_is_repeated() -> None:
    failed: set[str] = set()

    def fail_once(message: Message) -> Message | Exception:
        if message.metadata.message_id in failed:
            return honest(message)
        failed.add(message.metadata.message_id)
        return ConnectionError("reset")

    defended, _ = run_federation(replace_behavior(NODES, fail_once))
    assert get_reasons(defended) == []


def test_an_unreadable_reply_that_is_gone_ends_the_wait() -> None:
    """A SuperLink forgets what it has delivered."""
    seen: set[str] = set()

    def once(message: Message) -> Exception | None:
        if message.metadata.message_id in seen:
            return None
        seen.add(message.metadata.message_id)
        return ValueError("cannot be inflated")

    defended, _ = run_federation(replace_behavior(NODES[:1], once))
    assert get_reasons(defended) == ["unreadable"]


def test_a_reply_that_never_comes_is_late() -> None:
    defended, _ = run_federation(replace_behavior(NODES[:2], lambda _: None), deadline=0.2)
    assert get_reasons(defended) == ["late", "late"]


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 16])
@pytest.mark.parametrize("n_hanging", [1, 6])
def test_a_hanging_pull_does_not_delay_the_others(n_hanging: int, n_threads: int) -> None:
    """Whichever reply is pulled first, all others count, even if there are fewer threads than pulls that hang."""
    limits = PullLimits(n_threads=n_threads, pull_seconds=0.02, grace=0.5, poll_interval=0.05)
    defended, _ = run_federation(replace_behavior(NODES[:n_hanging], hang), deadline=1.5, limits=limits)
    assert get_reasons(defended) == ["late"] * n_hanging


def test_a_hanging_pull_blocks_one_thread_in_all_rounds() -> None:
    run_federation(replace_behavior(NODES[:2], hang), rounds=3, deadline=0.3, limits=PullLimits(grace=0.3))
    end = time.monotonic() + 300
    while len(pull_threads()) > 2:  # those of the other nodes end a moment after their last pull
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(pull_threads()) == 2


def test_a_slow_pull_still_counts() -> None:
    def slow(message: Message) -> Message:
        time.sleep(0.2)
        return honest(message)

    limits = PullLimits(n_threads=1, pull_seconds=0.02)  # another thread takes its place
    defended, _ = run_federation(replace_behavior(NODES[:1], slow), limits=limits)
    assert get_reasons(defended) == []


def test_replies_are_pulled_at_the_same_time() -> None:
    """No pull returns before all eight are under way."""
    together = threading.Barrier(8, timeout=300)

    def meet(message: Message) -> Message:
        together.wait()
        return honest(message)

    defended, _ = run_federation(replace_behavior(NODES, meet))
    assert get_reasons(defended) == []


def test_the_number_of_pulls_at_the_same_time_is_limited() -> None:
    """The first three pulls are under way together, and never more than three."""
    under_way, most = Counter[str](), 0
    lock, together = threading.Lock(), threading.Barrier(3, timeout=300)

    def count(message: Message) -> Message:
        nonlocal most
        with lock:
            under_way["pulls"] += 1
            under_way["all"] += 1
            most, is_first = max(most, under_way["pulls"]), under_way["all"] <= 3
        if is_first:
            together.wait()
        time.sleep(0.05)
        with lock:
            under_way["pulls"] -= 1
        return honest(message)

    run_federation(replace_behavior(NODES, count), limits=PullLimits(n_threads=3))
    assert most == 3


def test_a_reply_that_arrived_before_the_deadline_is_not_late() -> None:
    """All replies arrive during the last poll before the deadline. One thread pulls them in the grace after it."""
    start, deadline = time.monotonic(), 0.3

    def arrive_late(message: Message) -> Message | None:
        is_there = time.monotonic() > start + deadline - 0.05
        time.sleep(0.02)
        return honest(message) if is_there else None

    limits = PullLimits(n_threads=1, poll_interval=10.0, pulls_per_second=20.0, grace=30.0)
    defended, _ = run_federation(replace_behavior(NODES, arrive_late), deadline=deadline, limits=limits)
    assert get_reasons(defended) == []


def test_the_order_of_arrival_does_not_change_the_bits() -> None:
    """Each reply is there at a pull drawn at random, and with any number of threads."""
    models = set()
    for seed in range(8):
        rng = random.Random(seed)
        n_empty = {node: rng.randrange(3) for node in NODES}

        def behave(message: Message, n_empty: dict[int, int] = n_empty) -> Message | None:
            node = message.metadata.dst_node_id
            n_empty[node] -= 1
            return honest(message) if n_empty[node] < 0 else None

        limits = PullLimits(n_threads=rng.randint(1, 16), poll_interval=0.001, pulls_per_second=1e6)
        defended = Defended(STRATEGIES["FedAdam"](), MultiKrum(), seed=2, pull_limits=limits)
        result = defended.start(LocalGrid(behave), record(model()), num_rounds=2)
        assert defended.record is not None
        models.add((b"".join(array.data for array in result.arrays.values()), str(defended.record.to_json())))
    assert len(models) == 1


def test_a_round_in_which_all_clients_fail_is_skipped() -> None:
    def in_round_two(message: Message) -> Message | Exception | None:
        number = message.content.config_records["config"]["server-round"]
        return ValueError("no") if number == 2 else honest(message)

    start = model()
    defended = Defended(STRATEGIES["FedAvgM"](), ACCEPT_ALL, deadline=30.0, seed=2)
    models: dict[int, bytes] = {}

    def keep_model(number: int, arrays: object) -> None:
        models[number] = b"".join(array.tobytes() for array in to_arrays(arrays).values())

    result = defended.start(LocalGrid(in_round_two), record(start), num_rounds=3, evaluate_fn=keep_model)
    skipped = [int(result.train_metrics_clientapp[k]["cosdefense-skipped"]) for k in (1, 2, 3)]  # type: ignore[arg-type]
    assert skipped == [0, 1, 0]
    assert models[0] != models[1] == models[2] != models[3]
    assert result.evaluate_metrics_clientapp[2] == {"cosdefense-rejected-unreadable": 8}


class Unreachable(LocalGrid):
    """Some nodes cannot be reached when their message is sent."""

    def __init__(self, unreachable: Iterable[int], error: Exception | None) -> None:
        super().__init__(honest)
        self.unreachable, self.error = frozenset(unreachable), error

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if any(message.metadata.dst_node_id in self.unreachable for message in messages):
            if self.error:
                raise self.error
            return [None]  # type: ignore[list-item]
        return super().push_messages(messages)


@pytest.mark.parametrize("error", [None, ConnectionError("no route")])
def test_an_unsent_message_does_not_affect_the_other_nodes(error: Exception | None) -> None:
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, deadline=30.0)
    defended.start(Unreachable(NODES[:3], error), record(model()), num_rounds=1)
    assert get_reasons(defended) == ["unsent"] * 3


def test_messages_are_pushed_together() -> None:
    """Every push digests the whole model."""
    sizes: list[int] = []

    class Counting(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            sizes.append(len(messages))
            return super().push_messages(messages)

    Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL).start(Counting(honest), record(model()), num_rounds=1)
    assert sizes == [8, 8]  # to train, to evaluate


@pytest.mark.slow
def test_a_push_may_take_longer_than_the_superlink_may_be_silent() -> None:
    class Slow(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            time.sleep(1.0)
            return super().push_messages(messages)

    limits = PullLimits(silence=0.7)
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, pull_limits=limits)
    defended.start(Slow(honest), record(model()), num_rounds=1)
    assert get_reasons(defended) == []


def test_an_unreachable_transport_ends_the_run() -> None:
    """Otherwise all remaining rounds would be skipped within a second."""
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, deadline=30.0)
    with pytest.raises(ConnectionError, match="no route"):
        defended.start(Unreachable(NODES, ConnectionError("no route")), record(model()), num_rounds=3)


class Killed(LocalGrid):
    """A SuperLink that is killed at its n-th request of some kind. Flower then repeats every request forever."""

    def __init__(self, request: str, n: int) -> None:
        super().__init__(honest)
        self.request, self.n_left, self.lock = request, n, threading.Lock()

    def get_node_ids(self) -> Iterable[int]:
        self.answer("nodes")
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.answer("push")
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.answer("pull")
        return super().pull_messages(message_ids)

    def answer(self, request: str) -> None:
        with self.lock:
            self.n_left -= request == self.request
        if self.n_left <= 0:
            HANG.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("request_kind", "n"), [("nodes", 4), ("push", 2), ("pull", 11)])  # in the second round
@pytest.mark.parametrize("deadline", [0.3, 60.0])  # the round ends before the server has noticed, or not
def test_a_server_without_a_superlink_stops_and_writes_nothing(
    request_kind: str, n: int, deadline: float, tmp_path: Path
) -> None:
    """It must not hold the lock of its folder forever, nor record a round in which it could reach no node."""
    strategy = FedAvg(min_train_nodes=8, min_available_nodes=8, fraction_evaluate=0.0)
    limits = PullLimits(grace=0.3, silence=0.6)
    defended = Defended(strategy, ACCEPT_ALL, deadline=deadline, pull_limits=limits, checkpoint_dir=tmp_path)
    with pytest.raises(SuperLinkLost, match=r"the SuperLink has not answered a request for 0\.6 seconds"):
        defended.start(Killed(request_kind, n), record(model()), num_rounds=3)
    with RunFolder(tmp_path).lock():
        assert len(read_run(tmp_path).rounds) == 1
    again = Defended(strategy, ACCEPT_ALL, checkpoint_dir=tmp_path)
    again.start(LocalGrid(honest), record(model()), num_rounds=3, resume=True)
    assert len(read_run(tmp_path).rounds) == 3


def test_replies_before_a_transport_failure_count() -> None:
    """With a grid of Flower, whose replies are an iterator that may raise."""
    defended, grid = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL), LocalGrid(honest)
    messages = list(defended.configure_train(1, record(model()), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))

    def fail_after_five() -> Iterator[Message]:
        yield from replies[:5]
        raise OSError("connection lost")

    arrays, metrics = defended.aggregate_train(1, fail_after_five())
    assert arrays is not None
    assert metrics is not None
    assert (metrics["cosdefense-accepted"], metrics["cosdefense-rejected-unreadable"]) == (5, 1)


def test_node_ids_are_sorted() -> None:
    assert list(GuardedGrid(LocalGrid(honest)).get_node_ids()) == sorted(NODES)


def simulate_polls(seconds: float, n_waiting: int) -> list[float]:
    """The times of all polls, in seconds since the messages were sent, if no node replies."""
    times = [0.0]
    while times[-1] < seconds:
        times.append(get_next_poll(times[-1], 0.0, n_waiting, PullLimits()))
    return times[:-1]


@pytest.mark.parametrize("n_waiting", [1, 10, 50, 1000])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 40.0, 3600.0])
def test_polls_become_rarer_with_time(seconds: float, n_waiting: int) -> None:
    """At most a hundred pulls a second, and a delay of at most a tenth of the wait, if that limit allows it."""
    times = simulate_polls(seconds, n_waiting)
    shortest = n_waiting / 100
    for earlier, later in pairwise(times):
        assert later - earlier >= shortest - 1e-9
        assert later - earlier <= max(shortest, min(earlier / 10, 3.0)) + 1e-9
    if seconds == 3600.0 and n_waiting <= 50:
        assert len(times) < 1400  # every half second would be 7,200


@pytest.mark.parametrize("n_waiting", [1, 8, 500, 10_000])
@pytest.mark.parametrize("seconds", [5.0, 60.0, 3600.0])
def test_all_nodes_get_their_turn_although_every_pull_hangs(seconds: float, n_waiting: int) -> None:
    limits = PullLimits()
    n_turns = -(-n_waiting // limits.n_threads)
    assert n_turns * get_pull_seconds(seconds, n_waiting, limits) <= max(seconds / 2, 0.1 * n_turns, 10.0)


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="n_threads must be positive, got 0"):
        PullLimits(n_threads=0)


def test_a_signal_is_handled_while_the_superlink_is_silent() -> None:
    """Flower ends an orphaned ServerApp by a signal that one of its threads raises. It must not wait."""

    def stop(*_: object) -> None:
        raise InterruptedError("stopped by a signal")

    def ask() -> None:  # a busy computer may need longer than the timer until it asks
        threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGUSR1)).start()
        GuardedGrid(Killed("nodes", 1), limits=PullLimits(silence=30.0)).get_node_ids()

    before = signal.signal(signal.SIGUSR1, stop)
    too_late = threading.Timer(25.0, lambda: None)
    too_late.start()
    try:
        with pytest.raises(InterruptedError):
            ask()
        assert too_late.is_alive()
    finally:
        too_late.cancel()
        signal.signal(signal.SIGUSR1, before)
