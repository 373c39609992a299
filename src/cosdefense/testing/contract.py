"""The contract of every part: see `cosdefense.testing`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from ..aggregators import Mean
from ..attacks import Attack
from ..catalog.registry import build_attack, build_defense, describe
from ..core import Aggregator, Cohort, Defense, Filter, Part, State, TooFewClients, pack, unpack
from .examples import LAYOUT, cohorts, large_cohort, masks
from .selected_layers import check_selected_layers

__all__ = ["LAYOUT", "check_aggregator", "check_attack", "check_defense", "check_filter"]

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}  # half precision: a few units in the last place


def check_filter(part: Filter, *, device: str = "cpu", may_reject_identical: bool = False) -> None:
    """Check everything that a filter promises.

    Args:
        part: The filter.
        device: Where the cohorts are.
        may_reject_identical: Whether clients that all send the same update may be rejected: by a rule that takes
            agreement for collusion, or that asks the server's data.
    """
    _check_dataclass(part)
    _check_description(Defense((part,), Mean()), build_defense)
    for cohort in (*cohorts(device, half_precision=True), large_cohort(device)):
        _check_part(part, cohort, _judge)
    _check_identical_clients(part, device, may_reject_identical)
    check_selected_layers(part, device=device)
    check_defense(Defense((part,), Mean()), device=device)


def check_aggregator(
    part: Aggregator, *, device: str = "cpu", adds_noise: bool = False, limits_steps: bool = False
) -> None:
    """Check everything that an aggregator promises.

    Args:
        part: The aggregator.
        device: Where the cohorts are.
        adds_noise: Whether the result is noisy. If not, clients that all send the same update give that update.
        limits_steps: Whether the result may be shorter than what clients agree on.
    """
    _check_dataclass(part)
    _check_description(Defense((), part), build_defense)
    for cohort in (*cohorts(device, half_precision=True), large_cohort(device)):
        _check_part(part, cohort, _combine)
        same = replace(cohort, updates=cohort.updates[:1].expand_as(cohort.updates).clone())
        answer = _outcome(part, same, part.init(), _combine)
        if answer is not None and not adds_noise and not limits_steps:
            _check_close(answer[0]["update"], same.updates[0], f"{part}: identical clients must give their update")
    check_defense(Defense((), part), device=device)


def check_defense(defense: Defense, *, device: str = "cpu") -> None:
    """Check that a row that is not finite is rejected before any filter runs, and changes nothing for the others."""
    for cohort in cohorts(device, half_precision=True):
        if len(cohort) < 10:
            continue
        others = torch.arange(len(cohort), device=device) != 3
        expected, _ = defense(cohort.only(others), defense.init())
        for poison in (torch.nan, torch.inf, -torch.inf):
            updates = cohort.updates.clone()
            updates[3, 5] = poison
            verdict, _ = defense(replace(cohort, updates=updates), defense.init())
            assert float(verdict.weights[3]) == 0, f"{defense}: a row with {poison} must be rejected"
            assert bool(verdict.update.isfinite().all()), f"{defense}: the update must stay finite"
            _check_equal(
                verdict.weights[others], expected.weights, f"{defense}: a row with {poison} must not move the others"
            )
            _check_close(verdict.update, expected.update, f"{defense}: a row with {poison} must not move the update")


def check_attack(attack: Attack, *, device: str = "cpu") -> None:
    """Check everything that an attack promises."""
    _check_dataclass(attack)
    _check_description(attack, build_attack)
    for cohort in cohorts(device):
        for malicious in masks(len(cohort), device):
            _check_forging(attack, cohort, malicious)
    _check_poisoning(attack, device)


def _check_dataclass(part: object) -> None:
    assert is_dataclass(part), f"{part}: a part is a frozen dataclass"
    assert vars(type(part))["__dataclass_params__"].frozen, f"{part}: the dataclass must be frozen"
    hash(part)


def _check_description(part: Any, build: Callable[[dict[str, Any]], Any]) -> None:
    table = json.loads(json.dumps(describe(part)))  # as a file would keep it
    assert build(table) == part, f"{part}: build(describe(part)) must give the same part, got {build(table)}"


Outcome = dict[str, Tensor]
Call = Callable[[Any, Cohort, State], tuple[Outcome, State]]


def _judge(part: Filter, cohort: Cohort, state: State) -> tuple[Outcome, State]:
    judgment, state = part(cohort, state)
    updates = cohort.updates if judgment.updates is None else judgment.updates
    weights = judgment.weights.to(cohort.updates.dtype)
    assert bool((judgment.scores == judgment.scores).all()), f"{part}: scores must not be NaN"
    return {"scores": judgment.scores, "weights": weights, "updates": updates}, state


def _combine(part: Aggregator, cohort: Cohort, state: State) -> tuple[Outcome, State]:
    update, state = part(cohort, state)
    return {"update": update}, state


def _outcome(part: Any, cohort: Cohort, state: State, ask: Call) -> tuple[Outcome, State] | None:
    """The answer, or None where the cohort is too small for the rule and it says so."""
    try:
        return ask(part, cohort, state)
    except TooFewClients as problem:
        message = str(problem)
    assert str(len(cohort)) in message, f"{part}: TooFewClients must say how many there were, got {message!r}"
    return None


def _check_part(part: Part, cohort: Cohort, ask: Call) -> None:
    """Two rounds: shapes, finite numbers, dtypes; inputs untouched; any order of rows; a state that can be saved."""
    state = part.init()
    for number in range(2):
        cohort = replace(cohort, seed=cohort.seed + number)
        untouched, saved = _copy(cohort), _save(state)
        first = _outcome(part, cohort, state, ask)
        if first is None:
            return
        answer, after = first
        n, d = cohort.updates.shape
        shapes = {"scores": (n,), "weights": (n,), "updates": (n, d), "update": (d,)}
        for name, value in answer.items():
            assert tuple(value.shape) == shapes[name], (
                f"{part}: {name} must have shape {shapes[name]}, got {value.shape}"
            )
            assert bool(value.isfinite().all()), f"{part}: {name} must be finite"
            if name != "scores":
                assert value.dtype == cohort.updates.dtype, f"{part}: {name} must stay {cohort.updates.dtype}"
        _check_cohort_equal(cohort, untouched, f"{part} must not write to its input")
        _check_state_untouched(part, state, saved)
        again = ask(part, cohort, _restore(saved, part))
        for name, value in answer.items():
            _check_equal(
                again[0][name], value, f"{part}: the same input must give the same {name}, from a saved state too"
            )
        _check_order(part, cohort, state, answer, ask)
        state = after


def _check_state_untouched(part: Part, state: State, saved: tuple[str, dict[str, Tensor]]) -> None:
    structure, tensors = _save(state)
    assert structure == saved[0], f"{part} must not write to the state it is given"
    for name, tensor in tensors.items():
        _check_equal(tensor, saved[1][name], f"{part} must not write to the state it is given")


def _check_order(part: Part, cohort: Cohort, state: State, answer: Outcome, ask: Call) -> None:
    order = torch.randperm(len(cohort), generator=torch.Generator().manual_seed(cohort.seed)).to(cohort.updates.device)
    shuffled = replace(
        cohort, updates=cohort.updates[order], clients=cohort.clients[order], weights=cohort.weights[order]
    )
    other, _ = ask(part, shuffled, state)
    for name, value in answer.items():
        expected = value if name == "update" else value[order]
        if name == "weights":
            _check_equal(
                other[name] != 0, expected != 0, f"{part}: who is accepted must not depend on the order of rows"
            )
        _check_close(other[name], expected, f"{part}: {name} must not depend on the order of rows")


def _check_identical_clients(part: Filter, device: str, may_reject: bool) -> None:
    for cohort in cohorts(device, half_precision=True):
        same = replace(cohort, updates=cohort.updates[:1].expand_as(cohort.updates).clone())
        answer = _outcome(part, same, part.init(), _judge)
        if answer is not None:
            weights = answer[0]["weights"]
            assert bool((weights == weights[0]).all()), (
                f"{part}: identical clients must get equal weights, got {weights}"
            )
            if not may_reject:
                assert bool((weights != 0).all()), f"{part}: identical clients must not be rejected, got {weights}"


def _check_forging(attack: Attack, cohort: Cohort, malicious: Bool[Tensor, " n"]) -> None:
    untouched = _copy(cohort)
    forged, _ = attack.forge(cohort, malicious, attack.init())
    assert forged.shape == cohort.updates.shape, (
        f"{attack}: forge must return {cohort.updates.shape}, got {forged.shape}"
    )
    assert forged.dtype == cohort.updates.dtype, f"{attack}: forge must keep {cohort.updates.dtype}, got {forged.dtype}"
    assert bool(forged[malicious].isfinite().all()), f"{attack}: forged rows must be finite"
    _check_cohort_equal(cohort, untouched, f"{attack} must not write to its input")
    again, _ = attack.forge(cohort, malicious, attack.init())
    _check_equal(again[malicious], forged[malicious], f"{attack}: the same input must give the same rows")
    flipped = replace(cohort, updates=cohort.updates.flip(0), clients=cohort.clients.flip(0))
    other, _ = attack.forge(flipped, malicious.flip(0), attack.init())
    _check_close(
        other.flip(0)[malicious], forged[malicious], f"{attack}: forged rows must not depend on the order of rows"
    )


def _check_poisoning(attack: Attack, device: str) -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 5, 1, 8, 8, generator=rng).to(device)
    labels = torch.randint(0, 10, (2, 3, 5), generator=rng).to(device)
    before = images.clone(), labels.clone()
    first = attack.poison(images, labels, 10, torch.Generator().manual_seed(1))
    again = attack.poison(images, labels, 10, torch.Generator().manual_seed(1))
    for name, given, kept, one, two in zip(("images", "labels"), (images, labels), before, first, again, strict=True):
        assert one.shape == given.shape, f"{attack}: poisoned {name} must keep shape {given.shape}, got {one.shape}"
        assert one.dtype == given.dtype, f"{attack}: poisoned {name} must keep {given.dtype}, got {one.dtype}"
        _check_equal(given, kept, f"{attack}: poison must not write to the {name} it is given")
        _check_equal(one, two, f"{attack}: the same random stream must give the same {name}")
    assert bool(((first[0] >= 0) & (first[0] <= 1)).all()), f"{attack}: pixels must stay in [0, 1]"
    assert bool(((first[1] >= 0) & (first[1] < 10)).all()), f"{attack}: labels must stay in range"


def _save(state: State) -> tuple[str, dict[str, Tensor]]:
    packed, tensors = pack(state)
    return json.dumps(packed), {name: tensor.clone() for name, tensor in tensors.items()}


def _restore(saved: tuple[str, dict[str, Tensor]], part: Part) -> State:
    return unpack(json.loads(saved[0]), saved[1], like=part.init())


def _copy(cohort: Cohort) -> dict[str, Tensor]:
    values = {field.name: getattr(cohort, field.name) for field in fields(cohort)}
    return {name: value.clone() for name, value in values.items() if isinstance(value, Tensor)}


def _check_cohort_equal(cohort: Cohort, copy: dict[str, Tensor], message: str) -> None:
    for name, value in copy.items():
        _check_equal(getattr(cohort, name), value, message)


def _check_equal(result: Tensor, expected: Tensor, message: str) -> None:
    assert torch.equal(result, expected), f"{message}: expected {expected}, got {result}"


def _check_close(result: Tensor, expected: Tensor, message: str) -> None:
    """Equal up to the rounding of sums in another order."""
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    tolerance = TOLERANCES.get(expected.dtype, 4 * torch.finfo(expected.dtype).eps)
    assert torch.allclose(result, expected, rtol=tolerance, atol=tolerance * scale), (
        f"{message}: expected {expected}, got {result}"
    )
