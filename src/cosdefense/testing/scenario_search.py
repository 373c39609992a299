"""Which scenarios `check_restoring` tries: known ones first, then random ones, changed ones, and simpler ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import get_args

from ..attacks._candidates import BASES, DIRECTIONS, MAX_MAGNITUDE, Candidate
from ..attacks._forgeries import HONEST_FORGERY, STANDARD_FORGERIES, ZERO_CANDIDATE, Forgery
from .agreement import Agreement
from .scenarios import Deviation, Direction, HonestRows, Norms, Rounds, Scenario

DIVERSE_COSINES = (0.0, 0.05, 0.3, 0.9)  # of earlier rounds
MAGNITUDES = (0.2, 0.5, 1.0, 2.0, 5.0, MAX_MAGNITUDE)
NOISES = (0.0, 0.0, 0.3, 0.85, 2.0)
N_SEEDS = 20


def openings(agreement: Agreement) -> Iterator[Scenario]:
    """Every known forgery in the first round, then after histories that are likely to mislead a defense."""
    n, m = agreement.n_clients, agreement.largest_minority
    agreed = HonestRows(agreement.min_cosine)
    for forgery in STANDARD_FORGERIES.values():
        yield Scenario(Rounds(agreed, m, forgery), n_clients=n)
    if agreement.max_history == 0:
        return
    diverse, zero = HonestRows(0.05), STANDARD_FORGERIES["zero updates"]
    rounds = min(8, agreement.max_history)
    histories = (
        Rounds(diverse, 0, HONEST_FORGERY, rounds),  # honest clients used to differ
        Rounds(replace(diverse, direction="opposite"), 0, HONEST_FORGERY, rounds),
        Rounds(diverse, n, zero, rounds),
        Rounds(diverse, n - 1, STANDARD_FORGERIES["inner product"], rounds),
    )
    for history in histories:
        for growth in (1.0, agreement.max_growth**0.5):
            for forgery in STANDARD_FORGERIES.values():
                last = Rounds(replace(agreed, scale=growth), m, forgery)
                yield Scenario(last, (history,), n)


def draw_scenario(agreement: Agreement, rng: Random) -> Scenario:
    """A random scenario that meets the conditions."""
    last = Rounds(_draw_agreed(agreement, rng), rng.randint(1, agreement.largest_minority), _draw_forgery(rng))
    if rng.random() < 0.5:
        last = replace(last, n_malicious=agreement.largest_minority)
    history = tuple(_draw_rounds(agreement, rng) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    return Scenario(last, _limit(history, agreement.max_history), agreement.n_clients, rng.randrange(N_SEEDS))


def mutate(scenario: Scenario, agreement: Agreement, rng: Random) -> Scenario:
    """Change one thing: the last round's forgery most often, else its honest rows, the history or the seed."""
    last, history, kind = scenario.last, list(scenario.history), rng.random()
    if kind < 0.5:
        neighbors = list(last.forgery.neighbors(rng.choice((0.5, 0.25, 0.1))))
        return replace(scenario, last=replace(last, forgery=rng.choice(neighbors)))
    if kind < 0.6:
        return replace(scenario, last=replace(last, forgery=_draw_forgery(rng)))
    if kind < 0.75:
        return replace(scenario, last=replace(last, honest=_draw_agreed(agreement, rng)))
    if kind < 0.8:
        return replace(scenario, seed=rng.randrange(N_SEEDS))
    if history and rng.random() < 0.5:
        history[rng.randrange(len(history))] = _draw_rounds(agreement, rng)
    elif history and rng.random() < 0.5:
        i = rng.randrange(len(history))
        history[i] = replace(history[i], n_rounds=max(1, round(history[i].n_rounds * rng.choice((0.5, 2)))))
    else:
        history.insert(rng.randrange(len(history) + 1), _draw_rounds(agreement, rng))
    return replace(scenario, history=_limit(tuple(history[-3:]), agreement.max_history))


def simplify(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with one thing less, the largest simplifications first."""
    last, history = scenario.last, scenario.history
    if history:
        yield replace(scenario, history=())
    for i, rounds in enumerate(history):
        yield replace(scenario, history=(*history[:i], *history[i + 1 :]))
        if rounds.n_rounds > 1:
            for fewer in (1, rounds.n_rounds // 2, rounds.n_rounds - 1):
                yield replace(scenario, history=(*history[:i], replace(rounds, n_rounds=fewer), *history[i + 1 :]))
        for simpler in _simplify_rounds(rounds):
            yield replace(scenario, history=(*history[:i], simpler, *history[i + 1 :]))
    if last.n_malicious > 1:
        yield replace(scenario, last=replace(last, n_malicious=last.n_malicious - 1))
    for simpler in _simplify_rounds(last):
        if simpler.n_malicious > 0:
            yield replace(scenario, last=simpler)
    if scenario.seed:
        yield replace(scenario, seed=0)


def _simplify_rounds(rounds: Rounds) -> Iterator[Rounds]:
    """Plainer honest rows and plainer forgeries. Cosines stay: they are a condition."""
    honest, forgery = rounds.honest, rounds.forgery
    if rounds.n_malicious and forgery != HONEST_FORGERY:
        for known in STANDARD_FORGERIES.values():
            if known == forgery:
                break
            yield replace(rounds, forgery=known)
        else:
            if forgery.share < 1:
                yield replace(rounds, forgery=replace(forgery, share=1.0))
            if forgery.noise:
                yield replace(rounds, forgery=replace(forgery, noise=0.0))
    plain = HonestRows(honest.cosine)
    for name in ("direction", "deviation", "norms", "scale"):
        if getattr(honest, name) != getattr(plain, name):
            changes = {name: getattr(plain, name)} | ({"norm_ratio": 1.0} if name == "norms" else {})
            yield replace(rounds, honest=replace(honest, **changes))


def _draw_agreed(agreement: Agreement, rng: Random) -> HonestRows:
    """Honest rows that meet the conditions, mostly just so."""
    cosine = rng.choice((agreement.min_cosine, agreement.min_cosine, (1 + agreement.min_cosine) / 2, 1.0))
    directions = [name for name in get_args(Direction) if name != "opposite"]
    return _draw_honest(agreement, cosine, rng.choice(directions), rng)


def _draw_honest(agreement: Agreement, cosine: float, direction: Direction, rng: Random) -> HonestRows:
    norms: Norms = rng.choice(get_args(Norms))
    deviation: Deviation = rng.choice(get_args(Deviation))
    ratio = 1.0 if norms == "equal" else agreement.max_norm_ratio
    growth = agreement.max_growth**0.5  # of earlier rounds and of the last one, in both directions
    return HonestRows(cosine, direction, deviation, norms, ratio, rng.choice((1 / growth, 1.0, 1.0, growth)))


def _draw_rounds(agreement: Agreement, rng: Random) -> Rounds:
    """Earlier rounds, with any number of malicious clients."""
    honest = _draw_honest(agreement, rng.choice(DIVERSE_COSINES), rng.choice(get_args(Direction)), rng)
    n_malicious = rng.choice((0, agreement.largest_minority, rng.randint(0, agreement.n_clients), agreement.n_clients))
    return Rounds(honest, n_malicious, _draw_forgery(rng), rng.choice((1, 2, 4, 8, 16)))


def _draw_forgery(rng: Random) -> Forgery:
    if rng.random() < 0.5:
        return rng.choice(list(STANDARD_FORGERIES.values()))
    candidate = Candidate(rng.choice(DIRECTIONS), rng.choice(MAGNITUDES), *rng.choice(BASES))
    share = rng.choice((1.0, 1.0, 1.0, 0.75, 0.5, 0.25))
    rest = rng.choice((HONEST_FORGERY.candidate, ZERO_CANDIDATE))
    return Forgery(candidate, rng.choice(NOISES), share, rest)


def _limit(history: tuple[Rounds, ...], max_history: int) -> tuple[Rounds, ...]:
    """Cut the history at the number of rounds that is allowed. The last rounds are kept."""
    kept, left = list[Rounds](), max_history
    for rounds in reversed(history):
        if left > 0:
            kept.insert(0, replace(rounds, n_rounds=min(rounds.n_rounds, left)))
            left -= rounds.n_rounds
    return tuple(kept)
