"""FLDetector: remove clients whose updates cannot be predicted from their earlier ones.

Zhang, Cao, Jia, Gong. FLDetector: Defending Federated Learning Against Model Poisoning Attacks via Detecting Malicious
Clients. KDD 2022. https://arxiv.org/abs/2207.09209

After a detection the authors start the training again without the removed clients. Here it continues: a filter cannot
reset the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core import ClientTable, Cohort, Filter, Judgment, Need, State, generator
from ..ops import compute_dtype, count_groups, min_max, row_norms, split_in_two

MISSING = -1.0  # an error that is not known: errors are not negative
SINGULAR = 1e12  # a condition number from which a prediction would be noise


@dataclass(frozen=True)
class Memory:
    """What FLDetector remembers: the last round, and the model's last steps."""

    updates: ClientTable  # of the last round
    records: ClientTable  # of every client: its last errors, oldest first; and whether it is removed
    params: Float[Tensor, " t"] | None = None  # of the last round
    step: Float[Tensor, " t"] | None = None  # the model's last
    steps: tuple[Float[Tensor, " t"], ...] = ()  # of the model before that, the oldest first
    changes: tuple[Float[Tensor, " t"], ...] = ()  # of the aggregated gradient after each of these steps


@dataclass(frozen=True)
class FLDetector(Filter):
    """Predict every update as uᵢ − B · (w − w′), and remove the clients with larger errors if two groups are visible.

    uᵢ is the client's update of the last round, w − w′ the model's last step, and B an estimate of the Hessian from the
    model's steps in the last `window` rounds (L-BFGS). The aggregated update of a round is taken to be the step that
    the model made. An error is a share of all clients' errors. The score is a client's mean error of the last `window`
    rounds. Once errors of a whole window are known, the gap statistic decides how many groups the scores form. If more
    than one, they are split in two, and the group with the larger scores is removed permanently.

    Every client must take part in every round: an update is predicted only for clients of the last round. The first
    detection is possible after twice the window. Attackers who send nearly the same in every round are predicted well
    and pass; honest clients with few, noisy samples are not. Scores are tested in every round, and the gap statistic
    sees groups in some rounds without an attack: then honest clients are removed.

    Args:
        window: How many rounds errors are averaged over, and how many steps of the model B is estimated from.
        max_groups: The largest number of groups that the gap statistic considers.
        draws: The number of random sets of scores that it compares with.
        capacity: How many clients are remembered. A removed client that is forgotten may return.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CLIENT_MEMORY, Need.FULL_PARTICIPATION})

    window: int = 10
    max_groups: int = 7
    draws: int = 10
    capacity: int = 10_000

    def __post_init__(self) -> None:
        for name, least in (("window", 1), ("max_groups", 2), ("draws", 1), ("capacity", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"FLDetector.{name} must be at least {least}, got {getattr(self, name)}")

    def init(self) -> Memory:
        return Memory(ClientTable.empty(), ClientTable.empty())

    def __call__(self, cohort: Cohort, state: State) -> tuple[Judgment, State]:
        updates = cohort.trainable().to(compute_dtype(cohort.updates.dtype))
        state = self._add_step(state, cohort.params[: cohort.layout.n_trainable].to(updates.dtype))
        unknown = torch.full((len(cohort), self.window + 1), MISSING, dtype=torch.float64, device=updates.device)
        unknown[:, -1] = 0
        record = state.records.lookup(cohort.clients, default=unknown)
        errors, removed = record[:, :-1], record[:, -1] > 0
        if len(state.steps) == self.window:
            now = prediction_errors(updates, cohort.clients, state, ~removed)
            shifted = torch.cat([errors[:, 1:], now[:, None]], dim=1)
            errors = torch.where((now != MISSING)[:, None], shifted, errors)
        removed = removed | self._detect(errors, ~removed, cohort.seed)
        known = errors != MISSING
        mean = (errors * known).sum(dim=1) / known.sum(dim=1).clamp_min(1)
        scores = torch.where(removed, 1.0, mean)  # an error is a share: at most 1
        record = torch.cat([errors, removed[:, None].double()], dim=1)
        after = replace(
            state,
            updates=ClientTable.empty().with_rows(cohort.clients, updates),
            records=state.records.with_rows(cohort.clients, record, self.capacity),
        )
        return Judgment(scores, ~removed), after

    def _add_step(self, state: Memory, params: Float[Tensor, " t"]) -> Memory:
        """With the step that the model made since the last round, and how the aggregated gradient changed with it."""
        if state.params is None:
            return replace(state, params=params)
        step, before = params - state.params, state.step
        if before is None:
            return replace(state, params=params, step=step)
        steps, changes = (*state.steps, before), (*state.changes, before - step)  # gradients point against steps
        return replace(state, params=params, step=step, steps=steps[-self.window :], changes=changes[-self.window :])

    def _detect(self, errors: Float[Tensor, "n window"], present: Bool[Tensor, " n"], seed: int) -> Bool[Tensor, " n"]:
        """Who is to be removed, judging by clients whose errors of the whole window are known."""
        judged = present & (errors != MISSING).all(dim=1)
        malicious = torch.zeros_like(judged)
        if int(judged.sum()) < 3:
            return malicious
        scores = min_max(errors[judged].mean(dim=1), tolerance=1e-12)
        if not bool((scores > 0).any()):
            return malicious
        rng = generator(seed, "fldetector")
        if count_groups(scores, self.max_groups, self.draws, rng) > 1:
            malicious[judged] = split_in_two(scores)
        return malicious


def prediction_errors(
    updates: Float[Tensor, "n t"], clients: Int[Tensor, " n"], last: Memory, present: Bool[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Each client's share of all errors; MISSING for clients without a prediction."""
    known = present & torch.isin(clients, last.updates.clients)
    step = torch.zeros_like(updates[0]) if last.step is None else last.step
    change = hessian_product(torch.stack(last.steps), torch.stack(last.changes), step)
    if change is None or int(known.sum()) < 2:
        return torch.full((len(updates),), MISSING, dtype=torch.float64, device=updates.device)
    largest = torch.finfo(updates.dtype).max  # two huge updates must not differ by infinity
    difference = last.updates.lookup(clients, default=updates) - updates
    errors = row_norms(difference.clamp(-largest, largest), change.to(updates.dtype))
    total = errors[known].sort().values.sum()  # sorted: the order of rows must not change a bit
    return torch.where(known, errors / torch.where(total > 0, total, 1), MISSING)


def hessian_product(
    steps: Float[Tensor, "k t"], changes: Float[Tensor, "k t"], vector: Float[Tensor, " t"]
) -> Float[Tensor, " t"] | None:
    """B · vector for the L-BFGS estimate B of the Hessian, from the model's steps and the changes of the gradient.

    None where the estimate is not determined: without steps, or if they are linearly dependent.
    """
    s, y, v = steps.double(), changes.double(), vector.double()
    last = s[-1] @ s[-1]
    if not bool(last > 0):
        return None
    sigma = y[-1] @ s[-1] / last
    products = s @ y.T
    lower = products.tril(-1)
    upper_rows = torch.cat([sigma * s @ s.T, lower], dim=1)
    matrix = torch.cat([upper_rows, torch.cat([lower.T, -products.diag().diag()], dim=1)])
    scale = matrix.abs().amax(dim=1).clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    scaled = scale[:, None] * matrix * scale
    if not bool(scaled.isfinite().all()) or not float(torch.linalg.cond(scaled)) < SINGULAR:
        return None
    right = torch.cat([sigma * (s @ v), y @ v])
    solution: Tensor = scale * torch.linalg.solve(scaled, scale * right)
    product: Tensor = sigma * v - sigma * (solution[: len(s)] @ s) - solution[len(s) :] @ y
    return product
