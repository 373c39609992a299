"""A transport that misbehaves: one reply that cannot be had costs itself, and never more time than the deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from federations import NODES, Behave, LocalGrid, arrays_of, honest, model, record
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from strategies import STRATEGIES

from cosdefense.filters import Clip
from cosdefense.flower import Defended
from cosdefense.flower.guarded_grid import GuardedGrid, next_poll

EVERYBODY = Clip(1e9)
HANG = threading.Event()


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Whatever hangs is let go at the end of a test."""
    HANG.clear()
    yield
    HANG.set()
    for thread in pulling():
        thread.join(5)


def pulling() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cosdefense-pull"]


def unless(nodes: Iterable[int], instead: Behave) -> Behave:
    chosen = frozenset(nodes)
    return lambda message: (instead if message.metadata.dst_node_id in chosen else honest)(message)


def hang(message: Message) -> Message:
    HANG.wait()
    return honest(message)


def federation(behave: Behave, rounds: int = 1, deadline: float = 2.0) -> tuple[Defended, LocalGrid, float]:
    """How it went, and how many seconds a round took."""
    strategy = FedAvg(min_train_nodes=8, min_available_nodes=8, fraction_evaluate=0.0)
    defended, grid = Defended(strategy, EVERYBODY, deadline=deadline, seed=2), LocalGrid(behave)
    start = time.monotonic()
    result = defended.start(grid, record(model()), num_rounds=rounds)
    seconds = (time.monotonic() - start) / rounds
    assert all(metrics["cosdefense-skipped"] == 0 for metrics in result.train_metrics_clientapp.values())
    return defended, grid, seconds


def rejected(defended: Defended) -> list[str]:
    assert defended.record is not None
    return sorted(reason for reason in defended.record.reasons if reason)


def test_a_reply_that_cannot_be_read_costs_itself() -> None:
    defended, _, seconds = federation(unless(NODES[:2], lambda _: ValueError("bad\nbytes")), deadline=60.0)
    assert rejected(defended) == ["broken", "broken"]
    assert seconds < 60


def test_a_reply_that_fails_once_is_asked_for_again() -> None:
    failed: set[str] = set()

    def at_first(message: Message) -> Message | Exception:
        if message.metadata.message_id in failed:
            return honest(message)
        failed.add(message.metadata.message_id)
        return ConnectionError("reset")

    defended, _, _ = federation(unless(NODES, at_first), deadline=60.0)
    assert rejected(defended) == []


def test_a_reply_that_breaks_and_is_gone_is_not_waited_for() -> None:
    """As in a SuperLink, which forgets what it has delivered."""
    seen: set[str] = set()

    def once(message: Message) -> Exception | None:
        if message.metadata.message_id in seen:
            return None
        seen.add(message.metadata.message_id)
        return ValueError("cannot be inflated")

    defended, _, seconds = federation(unless(NODES[:1], once), deadline=60.0)
    assert rejected(defended) == ["broken"]
    assert seconds < 60


def test_a_reply_that_never_comes_is_late() -> None:
    defended, _, seconds = federation(unless(NODES[:2], lambda _: None))
    assert rejected(defended) == ["late", "late"]
    assert seconds < 2 + 5


@pytest.mark.parametrize("n_hanging", [1, 6])
def test_a_pull_that_hangs_keeps_nobody_waiting(n_hanging: int) -> None:
    """Whichever of them is pulled first: the others are in the round."""
    defended, _, seconds = federation(unless(NODES[:n_hanging], hang), deadline=4.0)
    assert rejected(defended) == ["late"] * n_hanging
    assert seconds < 4 + 5


def test_hanging_pulls_cost_a_thread_each_not_one_per_poll() -> None:
    federation(unless(NODES[:2], hang), deadline=4.0)  # at least eight polls
    assert len(pulling()) == 2


def test_a_pull_that_hangs_for_a_while_still_counts() -> None:
    def slow(message: Message) -> Message:
        time.sleep(1.0)
        return honest(message)

    defended, _, _ = federation(unless(NODES[:1], slow), deadline=8.0)  # patience with one pull: half a second
    assert rejected(defended) == []


def test_all_failing_skips_the_round_and_the_run_goes_on() -> None:
    def in_round_two(message: Message) -> Message | Exception | None:
        number = message.content.config_records["config"]["server-round"]
        return ValueError("no") if number == 2 else honest(message)

    start = model()
    defended = Defended(STRATEGIES["FedAvgM"](), EVERYBODY, deadline=30.0, seed=2)
    models: dict[int, bytes] = {}

    def watch(number: int, arrays: object) -> None:
        models[number] = b"".join(array.tobytes() for array in arrays_of(arrays).values())

    result = defended.start(LocalGrid(in_round_two), record(start), num_rounds=3, evaluate_fn=watch)
    skipped = [int(result.train_metrics_clientapp[k]["cosdefense-skipped"]) for k in (1, 2, 3)]  # type: ignore[arg-type]
    assert skipped == [0, 1, 0]
    assert models[0] != models[1] == models[2] != models[3]
    assert result.evaluate_metrics_clientapp[2] == {"cosdefense-rejected-broken": 8}


class Unreachable(LocalGrid):
    """Some nodes are gone when their message is sent."""

    def __init__(self, gone: Iterable[int], error: Exception | None) -> None:
        super().__init__(honest)
        self.gone, self.error = frozenset(gone), error

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if any(message.metadata.dst_node_id in self.gone for message in messages):
            if self.error:
                raise self.error
            return [None]  # type: ignore[list-item]
        return super().push_messages(messages)


@pytest.mark.parametrize("error", [None, ConnectionError("no route")])
def test_a_message_that_cannot_be_sent_costs_its_node(error: Exception | None) -> None:
    defended = Defended(STRATEGIES["FedAvg"](), EVERYBODY, deadline=30.0)
    defended.start(Unreachable(NODES[:3], error), record(model()), num_rounds=1)
    assert rejected(defended) == ["unsent"] * 3


def test_a_transport_that_is_gone_stops_the_run() -> None:
    """Otherwise all rounds that are left would be skipped within a second."""
    defended = Defended(STRATEGIES["FedAvg"](), EVERYBODY, deadline=30.0)
    with pytest.raises(ConnectionError, match="no route"):
        defended.start(Unreachable(NODES, ConnectionError("no route")), record(model()), num_rounds=3)


def test_replies_that_break_off_while_they_are_handed_over_end_there() -> None:
    """With a grid of Flower's own, which hands over what it likes."""
    defended, grid = Defended(STRATEGIES["FedAvg"](), EVERYBODY), LocalGrid(honest)
    messages = list(defended.configure_train(1, record(model()), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))

    def breaking() -> Iterator[Message]:
        yield from replies[:5]
        raise OSError("connection lost")

    arrays, metrics = defended.aggregate_train(1, breaking())
    assert arrays is not None
    assert metrics is not None
    assert (metrics["cosdefense-accepted"], metrics["cosdefense-rejected-broken"]) == (5, 1)


def test_the_order_of_nodes_does_not_depend_on_the_transport() -> None:
    assert list(GuardedGrid(LocalGrid(honest)).get_node_ids()) == sorted(NODES)


def polls(seconds: float, n_waiting: int) -> list[float]:
    """When those who never answer are asked, in seconds since they were sent something."""
    times = [0.0]
    while times[-1] < seconds:
        times.append(next_poll(times[-1], 0.0, seconds, n_waiting))
    return times[:-1]


@pytest.mark.parametrize("n_waiting", [1, 10, 50, 1000])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 40.0, 3600.0])
def test_the_longer_the_wait_the_less_it_asks(seconds: float, n_waiting: int) -> None:
    """Never more than twenty pulls a second, never long after a reply has come, and once more just before the end."""
    asked = polls(seconds, n_waiting)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    busy = n_waiting / 20
    last = max(0.5, 2 * busy)
    final = seconds - last
    assert all(pause >= busy - 1e-9 for at, pause in zip(asked, pauses, strict=False) if abs(at + pause - final) > 1e-9)
    assert all(pause <= max(busy, 3.0) + 1e-9 for pause in pauses)
    assert all(pause <= max(busy, at / 10) + 1e-9 for at, pause in zip(asked, pauses, strict=False))
    assert not pauses or seconds - asked[-1] <= last + 1e-9
    if seconds == 3600.0 and n_waiting <= 50:
        assert len(asked) < 1300  # every half second would be 7,200
