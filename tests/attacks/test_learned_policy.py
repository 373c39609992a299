"""The learned policy: observation, action, forged update, and damaged files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from cosdefense import Attack, Cohort, Layout, get
from cosdefense.attacks import LearnedPolicy, TrainingPlan
from cosdefense.attacks.learned_policy import ReversedOwnMean
from cosdefense.attacks.policy_network import ActionRanges, Policy, head_size, observe
from cosdefense.catalog.options import ConfigError
from cosdefense.catalog.registry import build_attack, describe
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table, load
from cosdefense.simulation.loop import simulate
from cosdefense.testing.contract import LAYOUT, check_attack
from policies import constant_policy, random_policy, save_policy
from worlds import digits_world

PARAMS = torch.linspace(-1, 1, LAYOUT.size)
MALICIOUS = torch.tensor([False, True, False, True])


@pytest.mark.parametrize("sampled", [1, 10, 23])
def test_the_contract(sampled: int, tmp_path: Path) -> None:
    check_attack(LearnedPolicy(save_policy(random_policy(LAYOUT, sampled=sampled), tmp_path)))


def test_the_contract_of_a_single_action() -> None:
    check_attack(ReversedOwnMean(3.0, 2))


@pytest.mark.parametrize(("magnitude", "steps"), [(-1.0, 1), (math.inf, 1), (1.0, 0)])
def test_impossible_actions(magnitude: float, steps: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        ReversedOwnMean(magnitude, steps)


# observation


def test_observation_by_hand() -> None:
    layout = Layout((("body", (2,)), ("head.weight", (1, 3)), ("head.bias", (1,))), "head.weight", 6)
    params = torch.tensor([100.0, -100.0, 1.0, 2.0, 5.0, 3.0])
    assert observe(params, layout, 3, 10).tolist() == pytest.approx([-1.0, -0.5, 1.0, 0.0, -0.4])
    assert head_size(layout) == 4


@pytest.mark.parametrize(
    ("shapes", "head", "seen"),
    [
        ((("head.weight", (1, 2)), ("other.bias", (1,))), "head.weight", [0, 1]),  # no bias of its own
        ((("bias", (1,)), ("weight", (1, 2))), "weight", [1, 2, 0]),  # a model that is one layer
        ((("a.bias", (1,)), ("b.weight", (1, 2)), ("b.bias", (1,))), "b.weight", [1, 2, 3]),
        ((("w", (1, 2)), ("bias", (1,))), "w", [0, 1, 2]),
    ],
)
def test_the_bias_beside_the_head(shapes: tuple[tuple[str, tuple[int, ...]], ...], head: str, seen: list[int]) -> None:
    size = sum(math.prod(shape) for _, shape in shapes)
    layout, params = Layout(shapes, head, size), torch.tensor([0.1, 0.2, 0.7, 0.4][:size])
    low, high = min(params[seen].tolist()), max(params[seen].tolist())
    expected = [2 * (value - low) / (high - low) - 1 for value in params[seen].tolist()]
    assert observe(params, layout, 0, 10).tolist() == pytest.approx([*expected, -1.0])


@pytest.mark.parametrize("value", [0.0, 3.0, -1e30])
def test_a_constant_head_is_shown_as_zeros(value: float) -> None:
    assert observe(torch.full((LAYOUT.size,), value), LAYOUT, 5, 10).tolist() == [0.0] * 16


def test_large_parameters_and_many_attackers_stay_in_range() -> None:
    seen = observe(PARAMS * 3e38, LAYOUT, 25, 10)
    assert bool(seen.isfinite().all())
    assert (float(seen.min()), float(seen.max()), float(seen[-1])) == (-1.0, 1.0, 1.0)


# action


@pytest.mark.parametrize(
    ("action", "magnitude", "steps"), [((0.0, 0.0), 15.0, 25), ((-1.0, -1.0), 0.1, 1), ((1.0, 1.0), 29.9, 49),
                                       ((0.5, 0.49), 22.45, 36), ((7.0, -7.0), 29.9, 1)],
)  # fmt: skip
def test_the_papers_ranges(action: tuple[float, float], magnitude: float, steps: int) -> None:
    found = ActionRanges().decode(torch.tensor(action))
    assert found[0] == pytest.approx(magnitude)
    assert found[1] == steps


def test_the_papers_ranges_against_krum() -> None:
    krum = ActionRanges((0.1, 9.9), (1, 21))
    magnitude, steps = krum.decode(torch.tensor([0.5, 0.55]))
    assert magnitude == pytest.approx(4.9 * 0.5 + 5)
    assert steps == math.floor(10 * 0.55 + 11)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 6), max_size=3), st.integers(0, 12))
def test_the_network_against_plain_python(seed: int, hidden: list[int], n_malicious: int) -> None:
    policy = random_policy(LAYOUT, tuple(hidden), seed)
    params = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))
    values = observe(params, LAYOUT, n_malicious, 10).tolist()
    for number, (weight, bias) in enumerate(policy.layers):
        sums = [
            sum(w * v for w, v in zip(row, values, strict=True)) + b
            for row, b in zip(weight.tolist(), bias.tolist(), strict=True)
        ]
        last = number == len(policy.layers) - 1
        values = [math.tanh(total) if last else max(total, 0.0) for total in sums]
    assert policy.act(observe(params, LAYOUT, n_malicious, 10)).tolist() == pytest.approx(values, abs=1e-5)
    magnitude, steps = policy.decide(params, LAYOUT, n_malicious)
    assert magnitude == pytest.approx(14.9 * values[0] + 15, abs=1e-3)
    assert steps in (math.floor(24 * values[1] + 25 - 1e-3), math.floor(24 * values[1] + 25 + 1e-3))


# forged update


def test_forged_by_hand(tmp_path: Path) -> None:
    attack = LearnedPolicy(save_policy(constant_policy(LAYOUT, actions=ActionRanges((1.0, 4.0), (1, 10))), tmp_path))
    updates = torch.arange(4.0)[:, None].expand(4, LAYOUT.size)
    rows, state = attack.forge(Cohort.of(updates, PARAMS, LAYOUT), MALICIOUS, attack.init())
    assert state is None
    assert rows[MALICIOUS].tolist() == [[-5.0] * LAYOUT.size] * 2  # −2.5 times the mean of rows 1 and 3
    assert attack.plan_training(PARAMS, LAYOUT, 2, None) == TrainingPlan(steps=5)


def test_the_answer_depends_on_the_model_and_the_number_of_attackers(tmp_path: Path) -> None:
    policy = random_policy(LAYOUT)
    attack = LearnedPolicy(save_policy(policy, tmp_path))
    models = [torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    found = {attack.plan_training(params, LAYOUT, n, None).steps for params in models for n in range(6)}
    assert len(found) > 3
    cohort = Cohort.of(torch.ones(4, LAYOUT.size), models[0], LAYOUT)
    rows, _ = attack.forge(cohort, MALICIOUS, None)
    assert rows[1, 0].item() == pytest.approx(-policy.decide(models[0], LAYOUT, 2)[0])


def test_in_a_federation(tmp_path: Path) -> None:
    """A constant policy gives the same rounds as the attack with its one action."""
    world = digits_world(malicious=0.3)
    policy = constant_policy(world.task.layout, (0.25, -0.5), ActionRanges((0.1, 29.9), (1, 10)))
    magnitude, steps = policy.decide(world.task.initial(), world.task.layout, 1)

    def last(attack: Attack) -> torch.Tensor:
        rounds = simulate(world, attack, get("clipping-median"), rounds=5, sampled=10, batch=4, seed=0)
        return [round_.after.params for round_ in rounds][-1]

    assert torch.equal(last(LearnedPolicy(save_policy(policy, tmp_path))), last(ReversedOwnMean(magnitude, steps)))
    assert not torch.equal(last(ReversedOwnMean(magnitude, steps)), last(ReversedOwnMean(magnitude, steps + 1)))


# files


def test_kept_and_read_again(tmp_path: Path) -> None:
    policy = replace(random_policy(LAYOUT, actions=ActionRanges((0.3, 0.7), (2, 3))), history={"seed": 1})
    again = Policy.from_bytes(policy.to_bytes())
    assert again.to_bytes() == policy.to_bytes()
    assert (again.actions, again.sampled, again.history) == (policy.actions, policy.sampled, policy.history)
    assert again.decide(PARAMS, LAYOUT, 2) == policy.decide(PARAMS, LAYOUT, 2)


def test_described_with_its_digest(tmp_path: Path) -> None:
    """A policy that was trained again is a different attack: finished runs are not reused."""
    path = save_policy(random_policy(LAYOUT, seed=0), tmp_path)
    first = LearnedPolicy(path)
    table = describe(first)
    assert table == {"name": "learned-policy", "path": path, "sha256": first.sha256}
    assert build_attack(table) == first
    assert build_attack({"name": "learned-policy", "path": path}) == first
    save_policy(random_policy(LAYOUT, seed=1), tmp_path)
    assert LearnedPolicy(path) != first
    with pytest.raises(
        ConfigError, match=f"has changed: needed sha256 {first.sha256}, got {LearnedPolicy(path).sha256}"
    ):
        build_attack(table)


def test_found_beside_the_experiment_or_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for seed, folder in enumerate((beside, here)):
        folder.mkdir()
        save_policy(random_policy(LAYOUT, seed=seed), folder)
    (beside / "x.toml").write_text('[[attacks]]\nname = "learned-policy"\npath = "policy.safetensors"\n')

    def read() -> Experiment:
        return load(beside / "x.toml")

    monkeypatch.chdir(tmp_path)
    part = read().attacks[0].part
    assert isinstance(part, LearnedPolicy)
    assert part.sha256 == LearnedPolicy(str(beside / "policy.safetensors")).sha256
    from_beside = read().fingerprint
    monkeypatch.chdir(here)
    assert read().fingerprint != from_beside  # the working directory comes first


def test_a_missing_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"policy none\.safetensors was not found in .*train-attack makes one"):
        LearnedPolicy("none.safetensors")
    with pytest.raises(ConfigError, match="attack learned-policy needs path"):
        build_attack({"name": "learned-policy"})
    with pytest.raises(ConfigError, match="was not found"):
        from_table({"name": "x", "attacks": [{"name": "learned-policy", "path": str(tmp_path)}]})


GOOD = {"format": "cosdefense policy, version 1", "layers": 1, "magnitude": [0.1, 2.0], "steps": [1, 2], "sampled": 10,
        "history": {}}  # fmt: skip
LAYER = {"0.weight": torch.zeros(2, 16), "0.bias": torch.zeros(2)}


@pytest.mark.parametrize(
    ("tensors", "about", "complaint"),
    [
        (LAYER, None, "'__metadata__' is missing"),
        (LAYER, {"format": "other"}, "needs the format 'cosdefense policy, version 1', got 'other'"),
        (LAYER, {**GOOD, "layers": 2}, "'1.weight' is missing"),
        (LAYER, {**GOOD, "layers": 0}, "at least one layer"),
        (LAYER, {**GOOD, "magnitude": [3.0, 2.0]}, "magnitude must be a range"),
        (LAYER, {**GOOD, "magnitude": 3.0}, "is not a policy"),
        (LAYER, {**GOOD, "steps": [0, 2]}, "steps must be a range"),
        (LAYER, {**GOOD, "sampled": 0}, "sampled must be at least 1, got 0"),
        ({**LAYER, "0.bias": torch.zeros(3)}, GOOD, "a bias of as many rows"),
        ({**LAYER, "0.weight": torch.zeros(2, 16).double()}, GOOD, "float32"),
        ({"0.weight": torch.zeros(3, 16), "0.bias": torch.zeros(3)}, GOOD, "needs 2 outputs, got 3"),
        ({**LAYER, "1.weight": torch.zeros(2, 3), "1.bias": torch.zeros(2)}, {**GOOD, "layers": 2}, "needed 2 columns"),
        ({**LAYER, "0.bias": torch.tensor([0.0, torch.nan])}, GOOD, "must be finite"),
    ],
)
def test_a_damaged_policy(
    tmp_path: Path, tensors: dict[str, torch.Tensor], about: dict[str, object] | None, complaint: str
) -> None:
    metadata = None if about is None else {"policy": json.dumps(about)}
    (tmp_path / "bad.safetensors").write_bytes(save(tensors, metadata))
    with pytest.raises(ValueError, match=r"bad\.safetensors cannot be used") as error:
        LearnedPolicy(str(tmp_path / "bad.safetensors"))
    assert complaint in str(error.value)


@pytest.mark.parametrize("content", [b"", b"not a policy", b"\xff" * 100, random_policy(LAYOUT).to_bytes()[:-1]])
def test_not_a_policy_at_all(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.safetensors cannot be used: is not a safetensors file"):
        LearnedPolicy(str(tmp_path / "bad.safetensors"))


def test_a_policy_for_another_model(tmp_path: Path) -> None:
    attack = LearnedPolicy(save_policy(random_policy(LAYOUT), tmp_path))
    other = Layout((("head.weight", (2, 3)),), "head.weight", 6)
    with pytest.raises(ValueError, match=r"trained for a last layer of 15 numbers, 'head.weight' of this model has 6"):
        attack.plan_training(torch.zeros(6), other, 1, None)
    with pytest.raises(ValueError, match="15 numbers"):
        attack.forge(Cohort.of(torch.zeros(4, 6), torch.zeros(6), other), MALICIOUS, None)
