"""Faults of the transport: one bad reply does not affect the others, and a round never exceeds its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from federations import NODES, Behave, LocalGrid, honest, model, record, to_arrays
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.guarded_grid import GuardedGrid, get_next_poll

ACCEPT_ALL = Clip(1e9)
HANG = threading.Event()


@pytest.fixture(autouse=True)
def release_pulls() -> Iterator[None]:
    """End all hanging pulls after a test."""
    HANG.clear()
    yield
    HANG.set()
    for thread in pull_threads():
        thread.join(5)


def pull_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cosdefense-pull"]


def replace_behavior(nodes: Iterable[int], instead: Behave) -> Behave:
    chosen = frozenset(nodes)
    return lambda message: (instead if message.metadata.dst_node_id in chosen else honest)(message)


def hang(message: Message) -> Message:
    HANG.wait()
    return honest(message)


def run_federation(behave: Behave, rounds: int = 1, deadline: float = 2.0) -> tuple[Defended, LocalGrid, float]:
    """Run some rounds. Returns the strategy, the grid and the seconds per round."""
    strategy = FedAvg(min_train_nodes=8, min_available_nodes=8, fraction_evaluate=0.0)
    defended, grid = Defended(strategy, ACCEPT_ALL, deadline=deadline, seed=2), LocalGrid(behave)
    start = time.monotonic()
    result = defended.start(grid, record(model()), num_rounds=rounds)
    seconds = (time.monotonic() - start) / rounds
    assert all(metrics["cosdefense-skipped"] == 0 for metrics in result.train_metrics_clientapp.values())
    return defended, grid, seconds


def get_reasons(defended: Defended) -> list[str]:
    assert defended.record is not None
    return sorted(reason for reason in defended.record.reasons if reason)


def test_an_unreadable_reply_does_not_affect_the_others() -> None:
    defended, _, seconds = run_federation(
        replace_behavior(NODES[:2], lambda _: ValueError("bad\nbytes")), deadline=60.0
    )
    assert get_reasons(defended) == ["unreadable", "unreadable"]
    assert seconds < 60


def test_a_pull_that_fails_once_is_repeated() -> None:
    failed: set[str] = set()

    def fail_once(message: Message) -> Message | Exception:
        if message.metadata.message_id in failed:
            return honest(message)
        failed.add(message.metadata.message_id)
        return ConnectionError("reset")

    defended, _, _ = run_federation(replace_behavior(NODES, fail_once), deadline=60.0)
    assert get_reasons(defended) == []


def test_an_unreadable_reply_that_is_gone_ends_the_wait() -> None:
    """A SuperLink forgets what it has delivered."""
    seen: set[str] = set()

    def once(message: Message) -> Exception | None:
        if message.metadata.message_id in seen:
            return None
        seen.add(message.metadata.message_id)
        return ValueError("cannot be inflated")

    defended, _, seconds = run_federation(replace_behavior(NODES[:1], once), deadline=60.0)
    assert get_reasons(defended) == ["unreadable"]
    assert seconds < 60


def test_a_reply_that_never_comes_is_late() -> None:
    defended, _, seconds = run_federation(replace_behavior(NODES[:2], lambda _: None))
    assert get_reasons(defended) == ["late", "late"]
    assert seconds < 2 + 5


@pytest.mark.parametrize("n_hanging", [1, 6])
def test_a_hanging_pull_does_not_delay_the_others(n_hanging: int) -> None:
    """Whichever reply is pulled first, all others count."""
    defended, _, seconds = run_federation(replace_behavior(NODES[:n_hanging], hang), deadline=4.0)
    assert get_reasons(defended) == ["late"] * n_hanging
    assert seconds < 4 + 5


def test_a_hanging_pull_blocks_one_thread_not_one_per_poll() -> None:
    run_federation(replace_behavior(NODES[:2], hang), deadline=4.0)  # at least eight polls
    assert len(pull_threads()) == 2


def test_a_slow_pull_still_counts() -> None:
    def slow(message: Message) -> Message:
        time.sleep(1.0)
        return honest(message)

    defended, _, _ = run_federation(
        replace_behavior(NODES[:1], slow), deadline=8.0
    )  # the timeout of one pull is half a second
    assert get_reasons(defended) == []


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


def test_an_unreachable_transport_ends_the_run() -> None:
    """Otherwise all remaining rounds would be skipped within a second."""
    defended = Defended(STRATEGIES["FedAvg"](), ACCEPT_ALL, deadline=30.0)
    with pytest.raises(ConnectionError, match="no route"):
        defended.start(Unreachable(NODES, ConnectionError("no route")), record(model()), num_rounds=3)


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
        times.append(get_next_poll(times[-1], 0.0, seconds, n_waiting))
    return times[:-1]


@pytest.mark.parametrize("n_waiting", [1, 10, 50, 1000])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 40.0, 3600.0])
def test_polls_become_rarer_with_time(seconds: float, n_waiting: int) -> None:
    """At most twenty pulls a second, a delay of at most a tenth of the wait, and a last poll just before the end."""
    times = simulate_polls(seconds, n_waiting)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    shortest = n_waiting / 20
    last = max(0.5, 2 * shortest)
    final = seconds - last
    assert all(
        pause >= shortest - 1e-9 for at, pause in zip(times, pauses, strict=False) if abs(at + pause - final) > 1e-9
    )
    assert all(pause <= max(shortest, 3.0) + 1e-9 for pause in pauses)
    assert all(pause <= max(shortest, at / 10) + 1e-9 for at, pause in zip(times, pauses, strict=False))
    assert not pauses or seconds - times[-1] <= last + 1e-9
    if seconds == 3600.0 and n_waiting <= 50:
        assert len(times) < 1300  # every half second would be 7,200
