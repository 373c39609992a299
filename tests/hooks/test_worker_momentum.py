"""Worker momentum: what clients send, what they remember, in the simulator and after a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from cosdefense import Attack, Cohort, Defense, Filter, Judgment, Layout, get
from cosdefense.aggregators import CenteredClipping, Mean
from cosdefense.attacks import SignFlip
from cosdefense.core import State
from cosdefense.hooks import WorkerMomentum
from cosdefense.runs.checkpoint import checkpoint_of, read_checkpoint, snapshot_of, write_checkpoint
from cosdefense.simulation.loop import Round, Snapshot, simulate
from cosdefense.simulation.sending import empty_memories
from worlds import digits_world

LAYOUT = Layout((("w", (2,)), ("norm.running_mean", (1,))), "w", 2)


def test_pinned_values() -> None:
    """0.75 of the average is kept; the statistic, the last number, is sent as it is."""
    hook, memory, sent = WorkerMomentum(0.75), None, []
    for update in ([4.0, 0.0, 1.0], [0.0, 8.0, 2.0], [0.0, 0.0, 3.0]):
        now, memory = hook.send(torch.tensor(update), memory, LAYOUT)
        sent.append(now.tolist())
    assert sent == [[4, 0, 1], [3, 2, 2], [2.25, 1.5, 3]]


def test_options() -> None:
    assert get("centered-clipping", momentum=0.5) == Defense((), CenteredClipping(), (WorkerMomentum(0.5),))
    assert get("centered-clipping", momentum=0.0).hooks == ()
    with pytest.raises(ValueError, match=r"WorkerMomentum\.momentum must be in \[0, 1\), got 1\.0"):
        WorkerMomentum(1.0)


def history(
    hooks: tuple[WorkerMomentum, ...], rounds: int = 4, resume: Snapshot | None = None, attack: Attack = Attack()
) -> list[Round]:
    world = digits_world(n_clients=10, malicious=0.34)
    simulation = simulate(
        world, attack, Defense((), Mean(), hooks), rounds=rounds, sampled=7, batch=4, seed=0, resume=resume
    )
    return list(simulation)


def test_clients_remember_their_own_average() -> None:
    """By hand: each client's plain update at the same model, averaged with what that client sent before."""
    world, sent = digits_world(n_clients=10), dict[int, torch.Tensor]()
    before = world.task.initial()
    for round_ in history((WorkerMomentum(0.9),)):
        plain = plain_updates(before, round_.number)
        for client, update in zip(round_.clients.tolist(), plain, strict=True):
            sent[client] = 0.9 * sent[client] + 0.1 * update if client in sent else update
        expected = torch.stack([sent[client] for client in round_.clients.tolist()]).mean(dim=0)
        assert torch.allclose(round_.after.params - before, expected, atol=1e-6)
        before = round_.after.params
    assert len(sent) > 4  # clients were sampled: some sent more often than others


@dataclass(frozen=True)
class Watch(Filter):
    """Keeps the updates that it sees as its memory."""

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        return Judgment(cohort.weights, cohort.weights), cohort.updates.clone()


def plain_updates(params: torch.Tensor, number: int) -> torch.Tensor:
    """What clients that remember nothing send in this round, if the model is `params`."""
    world, start = digits_world(n_clients=10, malicious=0.34), Snapshot(number, params, (None, None), None)
    (round_,) = simulate(
        world, Attack(), Defense((Watch(),), Mean()), rounds=number + 1, sampled=7, batch=4, seed=0, resume=start
    )
    seen: torch.Tensor = round_.after.defense_state[0]
    return seen


def test_malicious_clients_do_not_run_it() -> None:
    remembered = history((WorkerMomentum(),), attack=SignFlip())[-1].after.client_memories[0].clients.tolist()
    malicious = digits_world(n_clients=10, malicious=0.34).malicious.nonzero().flatten().tolist()
    assert remembered
    assert not set(remembered) & set(malicious)


def test_resumed_from_a_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    whole = history((WorkerMomentum(),))
    write_checkpoint(tmp_path / "c", checkpoint_of(whole[1].after))
    hooks = (WorkerMomentum(),)
    middle = snapshot_of(read_checkpoint(tmp_path / "c"), ((None,), None, empty_memories(hooks)))
    assert torch.equal(history(hooks, resume=middle)[-1].after.params, whole[-1].after.params)
    forgotten = replace(middle, client_memories=())
    assert not torch.equal(history(hooks, resume=forgotten)[-1].after.params, whole[-1].after.params)
