"""Rejects updates that are far longer than those of the other nodes and of earlier rounds, before any filter runs.

Some filters compare directions only, and a mean follows its longest row: one reply of 1e30 would move the model by
1e29, or make the momenta of a strategy infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..ops import row_norms
from .reasons import Reason
from .reply_checks import CheckedReplies
from .sent_model import SentModel

MAX_RATIO = 100.0  # generous: honest updates differ by the number of local steps, the data, and the progress of a node
MAX_GROWTH = 10.0  # what one round can add to the running median norm, as a factor
SMALLEST = 1e-12  # norms whose squares float32 can hold
DECAY = 0.9  # how much of the running median norm is kept from round to round


class NormGuard:
    """Remembers the running median norm of accepted updates.

    An update is rejected if it is longer than `max_ratio` times the running median norm, or times the median norm of
    this round if that is higher: all updates may become longer at once, for example when the learning rate changes.
    The median of one round counts with at most ten times the running median norm, because malicious nodes may be the
    majority of a single round. If most updates are rejected nonetheless, the running median norm grows tenfold, so that
    no change of the honest updates locks them out for good.

    Args:
        max_ratio: An update longer than this many median norms is rejected. None: no update is.
    """

    def __init__(self, max_ratio: float | None) -> None:
        if max_ratio is not None and not 1 <= max_ratio < math.inf:
            raise ValueError(f"max_norm_ratio must be at least 1 and finite, or None, got {max_ratio}")
        self.max_ratio = max_ratio
        self.median: float | None = None  # the running median norm; None: no update has been accepted yet
        self._round_median = 0.0  # of the updates of this round that are not too long

    def reject_long(self, checked: CheckedReplies, model: SentModel) -> None:
        """Move the replies whose updates are too long to the rejected ones."""
        if self.max_ratio is None or not checked.valid:
            return
        n_received, limit = len(checked.valid), self._compute_limit([reply.norm for reply in checked.valid], model)
        _keep(checked, lambda norm: norm <= limit and math.isfinite(norm), f"the limit is {limit:.3g}")
        if self.median is not None and 2 * (n_received - len(checked.valid)) > n_received:
            self.median *= MAX_GROWTH
        self._round_median = find_lower_median([reply.norm for reply in checked.valid])

    @staticmethod
    def reject_short(checked: CheckedReplies) -> None:
        """For strategies that divide by the norm of every update: one that has not moved would end their round."""
        _keep(checked, lambda norm: norm >= SMALLEST, "which DP cannot divide by")

    def remember(self, accepted: Sequence[float]) -> None:
        """Take in the norms of the updates that the model was made of."""
        now = find_lower_median(accepted)
        if now == 0:  # carries no information
            return
        if self.median is None:  # a filter may have accepted nobody but a node that hardly moved
            self.median = max(now, self._round_median / MAX_GROWTH)
        else:
            self.median = DECAY * self.median + (1 - DECAY) * min(now, MAX_GROWTH * self.median)

    def _compute_limit(self, norms: Sequence[float], model: SentModel) -> float:
        assert self.max_ratio is not None
        reference = find_lower_median(norms)
        if self.median is not None:
            reference = max(self.median, min(reference, MAX_GROWTH * self.median))
        if reference == 0:  # most nodes have not moved, and neither did they before: the model itself is the scale
            reference = measure_model(model)
        return self.max_ratio * reference if reference > 0 else math.inf


def _keep(checked: CheckedReplies, is_usable: Callable[[float], bool], problem: str) -> None:
    """Move the replies whose norm is not usable to the rejected ones. One pass: thousands may be rejected at once."""
    replies, checked.valid = checked.valid, []
    for reply in replies:
        if is_usable(reply.norm):
            checked.valid.append(reply)
        else:
            checked.reject(reply.node, Reason.NORM, f"its update has norm {reply.norm:.3g}, {problem}")


def read_median(saved: object) -> float | None:
    """The running median norm of a checkpoint. Raises TypeError if it is none."""
    if saved is not None and not (isinstance(saved, float) and 0 < saved < math.inf):
        raise TypeError(f"the running median norm must be a positive number, got {saved!r:.40}")
    return saved


def find_lower_median(norms: Sequence[float]) -> float:
    """The lower of the two middle values: of two updates, the shorter one."""
    return sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0


def measure_model(model: SentModel) -> float:
    """The norm of the trainable part of a model."""
    return float(row_norms(model.params[None, : model.layout.n_trainable])[0])
