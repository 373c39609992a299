"""SIGKILL of the leader's process at the end of a round, while its helper lives on in another process."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

from secure_examples import THOROUGH
from secure_federations import MILD, NODES, Federation, defend, secure, start, to_bytes, train_twin

from cosdefense import Defense
from cosdefense.aggregators import Mean
from cosdefense.filters import NormLimit
from cosdefense.runs.records import read_run
from cosdefense.runs.verify import verify
from cosdefense.secure import Secure
from cosdefense.secure.exchange import Checks, Reports, Settled, TicketRequest
from cosdefense.secure.policy import Refused
from cosdefense.secure.ticket import Ticket

ROUNDS, VICTIM = 3, 2  # the round in which the leader is killed
BEFORE, AFTER = "before the settlement", "before the answer"
WRITES = 4  # of a round: fsync of the record; fsync, rename and fsync of the checkpoint


@dataclass
class PipedHelper:
    """The leader's end. Its process is killed at the n-th write after the settlement of a round."""

    connection: Connection
    at_write: int | None = None
    writes: int | None = None  # None: not counted yet

    def _ask(self, step: str, argument: Any) -> Any:
        self.connection.send((step, argument))
        answer = self.connection.recv()
        if isinstance(answer, Refused):
            raise answer
        return answer

    def issue_ticket(self, request: TicketRequest) -> Ticket:
        ticket: Ticket = self._ask("issue_ticket", request)
        return ticket

    def check_reports(self, reports: Reports) -> Checks:
        checks: Checks = self._ask("check_reports", reports)
        return checks

    def settle(self, leader: Checks) -> Settled:
        settled: Settled = self._ask("settle", leader)
        if leader.number == VICTIM:
            self.writes = 0
        return settled

    def count(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if self.writes is not None:
                self.writes += 1
                if self.writes == self.at_write:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return counted


@dataclass
class HelperProcess:
    """This process: it answers a leader in a child process, and remembers every sum that it gave."""

    federation: Federation
    defense: Secure
    folder: Path
    sums: dict[int, set[bytes]] = field(default_factory=dict)  # of each ticket
    settlements: list[Checks] = field(default_factory=list)

    def run_leader(self, kill: str | int | None = None) -> bytes | None:
        """Run or resume. The final model, or None if the leader was killed."""
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: none holds a lock here
            child = os.fork()
        if child == 0:
            try:
                ours.close()
                self._lead(PipedHelper(theirs, kill if isinstance(kill, int) else None))
                os._exit(0)
            finally:
                os._exit(1)
        theirs.close()
        with ours:
            self._answer(ours, child, kill)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None
        assert os.WEXITSTATUS(status) == 0
        return (self.folder / "final").read_bytes()

    def _lead(self, helper: PipedHelper) -> None:
        os.fsync, os.replace = helper.count(os.fsync), helper.count(os.replace)
        leader = defend(self.federation, self.defense, helper=helper, checkpoint_dir=self.folder / "run")
        result = leader.start(self.federation.grid(), start(), num_rounds=ROUNDS, resume=True)
        (self.folder / "final").write_bytes(to_bytes(result.arrays))

    def _answer(self, connection: Connection, child: int, kill: str | int | None) -> None:
        while True:
            try:
                step, argument = connection.recv()
            except EOFError:  # the leader has ended
                return
            last = step == "settle" and argument.number == VICTIM
            if last and kill == BEFORE:
                os.kill(child, signal.SIGKILL)
                return
            try:
                answer = getattr(self.federation.helper, step)(argument)
            except Refused as refusal:
                answer = refusal
            if step == "settle" and isinstance(answer, Settled) and answer.words is not None:
                self.settlements.append(argument)
                self.sums.setdefault(answer.number, set()).add(repr(answer.head).encode() + answer.words.tobytes())
            if last and kill == AFTER:
                os.kill(child, signal.SIGKILL)
                return
            connection.send(answer)


LIMITED = Secure(Defense((NormLimit(), MILD), Mean()), colluders=0.0)
CASES: list[tuple[str | int, Secure, bool]] = [
    (BEFORE, secure(), True), (AFTER, LIMITED, False), (1, secure(), False), (3, secure(), True),
]  # fmt: skip
if THOROUGH:
    CASES = list(product((BEFORE, AFTER, *range(1, WRITES + 1)), (secure(), LIMITED), (False, True)))


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "defense", "restart"), CASES)
def test_a_killed_leader_resumes_to_the_model_of_the_twin(
    kill: str | int, defense: Secure, restart: bool, tmp_path: Path
) -> None:
    """Killed at a write, or by the helper's process. In some cases the helper is restarted, too."""
    federation = Federation(tmp_path)
    federation.changes = {node: {"secure-norms": True} for node in NODES}
    helper = HelperProcess(federation, defense, tmp_path)
    assert helper.run_leader(kill) is None
    saved = kill == WRITES  # the last write comes after the checkpoint
    assert [r.round for r in read_run(tmp_path / "run").rounds][: 1 + saved] == list(range(1 + saved))
    assert sorted(helper.sums) == ([1] if kill == BEFORE else [1, 2])
    if restart:
        federation.restart()
    found = helper.run_leader()
    expected, accepted = train_twin(defense, [NODES] * ROUNDS)
    assert found == expected
    rounds = read_run(tmp_path / "run").rounds
    assert [r.skipped for r in rounds] == [None] * ROUNDS
    for line, nodes in zip(rounds, accepted, strict=True):
        assert {n for n, weight in zip(line.clients, line.weights, strict=True) if weight} == set(nodes)
    assert not verify(tmp_path / "run").faults
    # A ticket for each settlement, and one sum for each ticket. What the killed leader asked is not answered again.
    assert [len(sums) for sums in helper.sums.values()] == [1] * len(helper.settlements)
    assert len(helper.sums) == (ROUNDS if saved or kill == BEFORE else ROUNDS + 1)
    for old in helper.settlements[:-1]:
        with pytest.raises(Refused, match="not the current one"):
            federation.helper.settle(old)
