"""`Defended` with two references on reports: a running mean that survives restarts of both servers, or starts again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

import torch
from federations import model, record, reply, to_arrays
from flwr.app import ConfigRecord, RecordDict
from secure_federations import NODES, SEED, defend, make_context, start, to_bytes, train, train_twin
from test_secure_opposed_clusters_flower import Comparing, Link, reverse

from cosdefense import Cohort, Layout, get
from cosdefense.core import State, derive
from cosdefense.flower import Defended
from cosdefense.flower.node_ids import to_signed
from cosdefense.flower.secure_record import KEY
from cosdefense.secure import Secure
from cosdefense.secure.shared_mean import SharedMean
from cosdefense.secure.terms import MEAN_ROWS
from cosdefense.secure.triple_files import TripleFile, deal_files

DEFENSE = Secure(get("two-references"), colluders=0.0)


@dataclass
class Learning(Comparing):
    """A federation whose triples have rows for a running mean."""

    rounds: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.close()
        paths = self.folder / "leader-mean.triples", self.folder / "helper-mean.triples"
        deal_files(*paths, len(self.nodes) + MEAN_ROWS, self.rounds)
        self.files = TripleFile(paths[0], "leader"), TripleFile(paths[1], "helper")
        self.restart()


class Run:
    """A leader's rounds beside those of the twin."""

    def __init__(self, folder: Path) -> None:
        self.federation = Learning(folder, apps={NODES[2]: reverse})
        self.link = Link(self.federation)
        self.layout, self.arrays, self.number = Layout.of(model()), model(), 0
        self.twin_state: State = DEFENSE.plain.init()
        self.defended = self.start_leader()

    def start_leader(self) -> Defended:
        return defend(self.federation, DEFENSE, helper=self.link)

    def play(self, *, count: bool = True, before_opening: Callable[[], object] = lambda: None) -> str | None:
        """One round, which must be the twin's if it counts. Why it was skipped, if so."""
        self.number += 1
        grid, defended = self.federation.grid(), self.defended
        messages = list(defended.configure_train(self.number, record(self.arrays), ConfigRecord(), grid))
        replies = list(grid.send_and_receive(messages))
        before_opening()
        result, _ = defended.aggregate_train(self.number, replies)
        assert defended.record is not None
        if defended.record.skipped is not None or not count:
            return defended.record.skipped
        params, plain = self.layout.flatten(self.arrays), {}
        for message in messages:
            node = message.metadata.dst_node_id
            bare = reply(message, RecordDict({k: v for k, v in message.content.items() if k != KEY}))
            answer = self.federation.apps.get(node, train)(bare, make_context(node))
            plain[node] = self.layout.flatten(to_arrays(answer.content["arrays"])) - params
        rows = torch.stack([plain[node] for node in defended.record.clients])
        clients = torch.tensor([to_signed(node) for node in defended.record.clients])
        cohort = Cohort.of(rows, params, self.layout, clients, seed=derive(SEED, "defense", self.number))
        verdict, self.twin_state = DEFENSE.plain(cohort, self.twin_state)
        assert verdict.skipped is None
        assert list(defended.record.weights) == verdict.weights.tolist()
        assert result is not None
        expected, self.arrays = self.layout.unflatten(params + verdict.update), to_arrays(result)
        for name, array in self.arrays.items():
            assert np.array_equal(array, expected[name].numpy() if name in expected else model()[name]), name
        return None

    def forget_mean(self) -> None:
        """What the twin remembers when a half was lost."""
        self.twin_state = (replace(self.twin_state[0], mean=SharedMean()), *self.twin_state[1:])

    def check_halves(self) -> None:
        ours, theirs = self.defended.state[0].mean, self.twin_state[0].mean
        half = self.federation.helper._means.find(ours.version, self.layout.n_trainable)
        assert half is not None
        assert ours.halves is not None
        assert torch.equal(ours.halves[0] + torch.from_numpy(half.view(np.int64).copy()), theirs.halves[0])
        assert ours.total == theirs.total
        assert self.defended.state[0].part == self.twin_state[0].part


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    found = Run(tmp_path)
    yield found
    found.federation.close()


@pytest.mark.slow
def test_the_leader_decides_and_computes_as_the_twin(run: Run) -> None:
    """The helper is restarted between rounds 2 and 3, and in round 4, which is skipped."""
    for _ in range(2):
        assert run.play() is None
        run.check_halves()
    run.federation.restart()
    assert run.play() is None
    before = run.defended.state
    assert "is not the current one" in str(run.play(before_opening=run.federation.restart))
    assert run.defended.state is before
    for _ in range(2):
        assert run.play() is None
        run.check_halves()
    assert run.twin_state[0].part.n_rounds == 5


@pytest.mark.slow
def test_a_lost_half_starts_the_mean_again_and_training_goes_on(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    assert [run.play() for _ in range(3)] == [None] * 3
    for path in run.federation.folder.glob("helper.state.mean.*"):
        path.unlink()
    run.forget_mean()
    with caplog.at_level(logging.WARNING):
        assert run.play() is None
    assert "the helper has no half of the running mean of round 3: the mean starts again" in caplog.text
    assert run.twin_state[0].part.n_rounds == 1
    assert run.play() is None
    run.check_halves()


@pytest.mark.slow
def test_a_leader_that_lost_a_round_goes_on_from_the_mean_before(run: Run) -> None:
    """The helper learned the round; the leader was killed before its checkpoint, and repeats it on the same model."""
    assert [run.play() for _ in range(2)] == [None] * 2
    state, number = run.defended.state, run.number
    run.play(count=False)
    run.defended, run.number = run.start_leader(), number
    run.defended.state = state
    for _ in range(2):
        assert run.play() is None
        run.check_halves()


def test_triples_need_rows_for_the_mean(tmp_path: Path) -> None:
    """The first round says so, although it has no mean yet."""
    federation = Comparing(tmp_path)
    defended, grid = defend(federation, DEFENSE, helper=Link(federation)), federation.grid()
    messages = list(defended.configure_train(1, record(model()), ConfigRecord(), grid))
    defended.aggregate_train(1, list(grid.send_and_receive(messages)))
    federation.close()
    assert defended.record is not None
    assert f"the triples are for at most 6 rows, got {6 + MEAN_ROWS}" in str(defended.record.skipped)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_model_of_the_twin(tmp_path: Path) -> None:
    """The leader's half is in the checkpoint; the helper is a new process, too."""
    federation = Learning(tmp_path)
    link = Link(federation)
    for rounds in (2, 5):
        leader = defend(federation, DEFENSE, helper=link, checkpoint_dir=tmp_path / "run")
        result = leader.start(federation.grid(), start(), num_rounds=rounds, resume=True)
        federation.restart()
    federation.close()
    assert leader.state[0].part.n_rounds == 5
    assert to_bytes(result.arrays) == train_twin(DEFENSE, [NODES] * 5)[0]
