"""One round of training under secure aggregation: open it with the helper, then go on as in any other round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Message

from ..core import derive
from .delegation import Delegation
from .reasons import Rejection
from .reply_checks import CheckedReplies, Request, check_replies
from .reply_conversion import ReplyConverter
from .round_log import log_checked, log_rejection
from .round_record import HELPER_FAILED
from .secure_leader import HelperFailed, SecureLeader
from .training_round import Outcome, TrainingRound, UnusableRoundError

if TYPE_CHECKING:
    from .defended import Defended


@dataclass(frozen=True, eq=False)
class SecureRound(TrainingRound):
    """A round whose replies are reports. There is one sum, so nothing can be tried again without the longest update."""

    leader: SecureLeader

    def aggregate(self, checked: CheckedReplies) -> Outcome:
        leader, defended = self.leader, self.defended
        if leader.current is None:
            reason = leader.problem or "no node was asked to train"
            return self._skip_without_helper(checked, reason) if leader.failed else self._skip(checked, reason)
        quorum = leader.current.terms.quorum
        if len(checked.valid) < quorum:
            return self._skip(checked, f"{len(checked.valid)} reports, the quorum is {quorum}")
        try:
            remaining, outcomes = leader.open(checked)
        except HelperFailed as problem:
            return self._skip_without_helper(checked, str(problem))
        for rejection in remaining.rejected[len(checked.rejected) :]:
            log_rejection(rejection, defended.names)
        seed = derive(defended.seed, "defense", self.server_round)
        judged, state = leader.judge(remaining.valid, outcomes, defended.state, seed)
        verdict, defended.state = leader.defense.combine(judged, state)
        if verdict.skipped:
            return self._skip(remaining, verdict.skipped, verdict)
        work = Delegation(defended.strategy, leader.defense, True, self.converter, remaining.valid, judged, verdict)
        try:
            return self._delegate(remaining, work)
        except UnusableRoundError as problem:
            return self._skip(remaining, str(problem), verdict)

    def _skip_without_helper(self, checked: CheckedReplies, reason: str) -> Outcome:
        model, metrics = self._skip(checked, reason)
        if metrics is not None:
            metrics[HELPER_FAILED] = 1
        return model, metrics

    def _remember_norms(self, work: Delegation) -> None:
        """The norms are not known."""


def aggregate_reports(
    defended: Defended,
    server_round: int,
    converter: ReplyConverter,
    leader: SecureLeader,
    replies: Iterable[Message],
    missing: Sequence[Rejection],
) -> Outcome:
    """Check the form of reports, then open the round."""
    specs = leader.current.specs if leader.current else None
    checked = check_replies(replies, Request.of(defended.sent, None, None, specs))
    checked.rejected += missing
    defended.n_bytes["train-received"] = checked.n_bytes
    log_checked("aggregate_train", len(checked.valid), checked.rejected, defended.names)
    return SecureRound(defended, server_round, converter, leader).aggregate(checked)
