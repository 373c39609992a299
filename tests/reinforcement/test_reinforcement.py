"""Training of the learned attack: the data it uses, its reward, reproducibility, and interruption."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from commands import called
from cosdefense import get
from cosdefense.attacks import LearnedPolicy
from cosdefense.attacks.learned_policy import ReversedOwnMean
from cosdefense.attacks.policy_network import ActionRanges, Policy
from cosdefense.catalog.extras import MissingExtra
from cosdefense.data import load
from cosdefense.data.partition import LabelSkew
from cosdefense.reinforcement import TrainingInterrupted, TrainingOptions, train_policy
from cosdefense.runs.experiment import Experiment
from cosdefense.runs.experiment_file import from_table
from cosdefense.simulation.loop import simulate
from cosdefense.simulation.schedule import Schedule
from cosdefense.simulation.world import World
from cosdefense.training.local_sgd import LocalSGD
from cosdefense.training.server_data import ServerData
from forked import run_command
from worlds import digits_world

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from stable_baselines3.common.env_checker import check_env as check_env_again  # noqa: E402

from cosdefense.reinforcement.environment import FederationEnv, build_attackers_world  # noqa: E402
from cosdefense.reinforcement.training import build_environment, build_learner, extract_policy  # noqa: E402

CPU = torch.device("cpu")
RULES: dict[str, Any] = {"sampled": 5, "batch": 4, "local_steps": 1}
SHORT = TrainingOptions(
    steps=40,
    episode_length=10,
    exploration_steps=20,
    batch_size=8,
    hidden_layers=(8, 4),
    actions=ActionRanges(steps=(1, 3)),
)


def environment(world: World | None = None, **options: Any) -> FederationEnv:
    given = {**RULES, "actions": ActionRanges(steps=(1, 3)), "episode_length": 8, "seed": 7, **options}
    return FederationEnv(world or digits_world(), get("clipping-median"), **given)


def cell(**changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "name": "tiny", "seeds": [3], "data": {"clients": 20}, "model": {"name": "mlp", "hidden": 8},
        "training": {"rounds": 6, "sampled": 5, "batch": 4, "lr": 0.1}, "schedule": {"attack_start": 5},
        "defenses": [{"name": "median"}], **changes,
    }  # fmt: skip
    return from_table(table)


# the attackers' data


@pytest.mark.parametrize("seed", [0, 1])
def test_the_simulated_world_has_no_honest_sample(seed: int) -> None:
    world = digits_world(seed)
    simulated = build_attackers_world(world, LabelSkew(0.5), seed)
    own = [row for client, rows in enumerate(world.partition) if world.malicious[client] for row in rows.tolist()]
    assert torch.equal(simulated.inputs, world.inputs[own])
    assert torch.equal(simulated.targets, world.targets[own])
    assert sorted(row for rows in simulated.partition for row in rows.tolist()) == list(range(len(own)))
    assert len(simulated.partition) == len(world.partition)
    assert torch.equal(simulated.malicious, world.malicious)


def test_the_data_of_honest_clients_have_no_effect() -> None:
    world = digits_world()
    honest = torch.cat([rows for client, rows in enumerate(world.partition) if not world.malicious[client]])
    spoiled = world.inputs.clone()
    spoiled[honest] = 0
    seen = []
    for images in (world.inputs, spoiled):
        env = environment(replace(world, inputs=images))
        first, _ = env.reset(seed=0)
        seen.append((first, env.step(np.ones(2, dtype=np.float32))[0]))
    assert np.array_equal(seen[0][0], seen[1][0])
    assert np.array_equal(seen[0][1], seen[1][1])


def test_the_servers_data_are_simulated_too() -> None:
    world = digits_world()
    assert build_attackers_world(replace(world, trusted_data=None)).trusted_data is None
    shared = {client: rows[:2] for client, rows in enumerate(world.partition)}
    data = ServerData(world.task, world.trainer, 1, 4, world.inputs, world.targets, torch.arange(30), shared)
    simulated = build_attackers_world(replace(world, trusted_data=data))
    held = simulated.trusted_data
    assert isinstance(held, ServerData)
    assert held.inputs is simulated.inputs
    assert held.targets is simulated.targets
    assert len(held.held) == 30
    for client, rows in held.shared.items():
        assert set(rows.tolist()) <= set(simulated.partition[client].tolist())
    assert build_attackers_world(replace(world, trusted_data=data)).trusted_data is not data


@pytest.mark.parametrize(
    ("share", "n_clients", "complaint"),
    [(0.0, 50, "needs at least one malicious client, got none"), (0.002, 500, "at least 500 samples .* got")],
)
def test_too_few_attackers_or_samples(share: float, n_clients: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_attackers_world(digits_world(n_clients=n_clients, malicious=share))


# the environment


def test_gymnasium_and_stable_baselines_accept_it() -> None:
    check_env(environment(episode_length=3), skip_render_check=True)
    check_env_again(environment(episode_length=3))


def test_the_reward_is_the_rise_of_the_loss_between_decisions() -> None:
    """Against one uninterrupted simulation and a loss computed from its definition."""
    env = environment(schedule=Schedule(attack_start=3), sampled=2)
    _, info = env.reset(seed=5)
    losses, rewards, truncated = [info["loss"]], [], False
    while not truncated:
        _, reward, terminated, truncated, info = env.step(np.array([0.2, 1.0], dtype=np.float32))
        assert not terminated
        rewards.append(reward)
        losses.append(info["loss"])
    assert len(rewards) == 8

    world, move = env.world, ReversedOwnMean(*env.actions.decode(torch.tensor([0.2, 1.0])))
    params, attacked = [], []
    for round_ in simulate(
        world, move, env.defense, rounds=60, sampled=2, batch=4, seed=env._federation, schedule=Schedule(3)
    ):
        attacked.append(bool(round_.malicious.any()))
        params.append(round_.after.params)
    at_decisions = [model for model, acts in zip(params, attacked[1:], strict=False) if acts]  # before each decision
    assert not any(attacked[:3])
    assert not all(attacked[3:20])  # some rounds have no attacker
    images = world.inputs.float() / 255 if world.inputs.dtype == torch.uint8 else world.inputs
    expected = [float(cross_entropy(world.task.logits(model, images), world.targets)) for model in at_decisions[:9]]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert rewards == pytest.approx(np.diff(expected), abs=1e-4)


def test_the_observation_contains_the_number_of_attackers() -> None:
    env = environment(sampled=5)
    seen, _ = env.reset(seed=0)
    for _ in range(8):
        n_malicious = round((float(seen[-1]) + 1) / 2 * 5)
        assert n_malicious >= 1
        (round_,) = simulate(
            env.world, ReversedOwnMean(), env.defense, rounds=env._now.next_round + 1, sampled=5, batch=4,
            seed=env._federation, resume=env._now,
        )  # fmt: skip
        assert int(round_.malicious.sum()) == n_malicious
        seen, *_ = env.step(np.zeros(2, dtype=np.float32))


def test_every_episode_may_have_a_different_model() -> None:
    asked: list[int] = []

    def initial(number: int) -> torch.Tensor:
        asked.append(number)
        return digits_world(number % 1000).task.initial()

    env = environment(initial=initial, episode_length=2)
    first, second = env.reset(seed=0)[0], env.reset()[0]
    assert len(set(asked)) == 2
    assert not np.array_equal(first, second)
    trained = build_environment(cell(schedule={}), load("digits"), CPU, SHORT)
    starts: list[torch.Tensor] = []
    for _ in range(2):
        trained.reset(seed=len(starts))
        starts.append(trained._initial(trained._federation))
    assert not torch.equal(starts[0], starts[1])
    assert starts[0].shape == trained.world.task.initial().shape


def test_the_same_seed_the_same_episode() -> None:
    def played(env: FederationEnv, seed: int) -> list[float]:
        env.reset(seed=seed)
        return [float(env.step(np.full(2, 0.5, dtype=np.float32))[1]) for _ in range(4)]

    env = environment()
    assert played(env, 1) == played(env, 1) == played(environment(), 1)
    assert played(env, 1) != played(env, 2)


def test_rewards_stay_bounded_when_the_model_is_destroyed() -> None:
    world = replace(digits_world(), trainer=LocalSGD(1e4))
    env = FederationEnv(world, get("fedavg"), **RULES, episode_length=5)
    env.reset(seed=0)
    for _ in range(5):
        seen, reward, *_, info = env.step(np.ones(2, dtype=np.float32))
        assert np.isfinite(seen).all()
        assert abs(reward) <= info["loss"] <= env.max_loss
    assert info["loss"] == env.max_loss


# training


@pytest.mark.slow
def test_the_same_seed_the_same_policy(tmp_path: Path) -> None:
    data = load("digits")
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    trained = train_policy(cell(), data, CPU, tmp_path / "a", SHORT)
    after = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert after == before  # global random states are restored (beartype uses Python's)
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    train_policy(cell(), data, CPU, tmp_path / "b", SHORT)
    train_policy(cell(seeds=[4]), data, CPU, tmp_path / "c", SHORT)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert trained.steps == 40
    assert len(trained.losses) == 4
    policy = Policy.from_bytes(a)
    assert policy.actions == SHORT.actions
    assert policy.sampled == 5
    assert policy.history["decisions"] == 40
    assert policy.history["against"]["aggregator"] == {"name": "median"}


@pytest.mark.slow
def test_the_saved_policy_gives_the_same_actions_as_the_trained_one() -> None:
    experiment = cell()
    env = build_environment(experiment, load("digits"), CPU, SHORT)
    model = build_learner(env, SHORT, 0)
    model.learn(30)
    policy = Policy.from_bytes(extract_policy(model, experiment, SHORT).to_bytes())
    for seed in range(20):
        seen = np.random.default_rng(seed).uniform(-1, 1, env.observation_space.shape).astype(np.float32)
        expected, _ = model.predict(seen, deterministic=True)
        assert policy.act(torch.from_numpy(seen)).tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.slow
def test_the_only_rewarded_action_is_learned() -> None:
    """An environment whose reward is the magnitude."""

    class Paid(FederationEnv):
        def step(self, action: Any) -> Any:
            self._decisions += 1
            return self._observe(), float(action[0]), False, self._decisions >= self.episode_length, {"loss": 0.0}

    options = TrainingOptions(
        steps=400, exploration_steps=100, learning_rate=1e-3, batch_size=32, hidden_layers=(16,), discount=0.0
    )
    env = Paid(digits_world(), get("median"), **RULES, episode_length=50)
    model = build_learner(env, options, 0)
    model.learn(options.steps)
    action, _ = model.predict(env.reset()[0], deterministic=True)
    assert action[0] > 0.9


@pytest.mark.parametrize(("stop", "written"), [(4, False), (33, True)])
def test_interrupted(tmp_path: Path, stop: int, written: bool) -> None:
    def progress(done: int, loss: float | None) -> None:
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted) as stopped:
        train_policy(cell(), load("digits"), CPU, tmp_path / "policy", SHORT, progress)
    assert (stopped.value.steps, stopped.value.written) == (stop, written)
    assert (tmp_path / "policy").exists() is written
    if written:
        assert Policy.from_bytes((tmp_path / "policy").read_bytes()).history["decisions"] == stop


def test_the_extra_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cosdefense.reinforcement.training")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(MissingExtra, match=r"stable_baselines3 was not found: .*'\.\[rl\]'"):
        train_policy(cell(), load("digits"), CPU, tmp_path / "policy", SHORT)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"hidden_layers": ()}, "hidden_layers needs sizes"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"discount": 1.1}, "discount must be in"),
        ({"exploration_noise": -1.0}, "exploration_noise must be at least 0"),
        ({"exploration_steps": -1}, "exploration_steps must be at least 0"),
    ],
)
def test_wrong_options_are_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TrainingOptions(**change)


# the command

TOML = """
name = "tiny"
[data]
clients = 20
[model]
name = "mlp"
hidden = 8
[training]
rounds = 8
sampled = 5
batch = 4
lr = 0.1
[schedule]
attack_start = 4
[[attacks]]
name = "learned-policy"
path = "policy.safetensors"
[[defenses]]
name = "median"
[[defenses]]
name = "fedavg"
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "tiny.toml").write_text(TOML)
    return partial(run_command, cwd=tmp_path, COLUMNS="200", OMP_NUM_THREADS="1")


@pytest.mark.slow
def test_train_then_run(command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    arguments = ("train-attack", "tiny.toml", "--defense", "median", "--out", "policy.safetensors", "--steps", "40",
                 "--episode", "20", "--max-local-steps", "2", "--seed", "9")  # fmt: skip
    assert "policy policy.safetensors was not found" in called("run", "tiny.toml", cwd=tmp_path).stderr
    trained = command(*arguments, "--json")
    assert trained.returncode == 0, trained.stderr
    info = json.loads(trained.stdout)
    assert (info["policy"], info["decisions"], len(info["losses"])) == ("policy.safetensors", 40, 2)
    assert "decision 40 of 40, mean loss of the last episode" in trained.stderr
    policy = LearnedPolicy(str(tmp_path / "policy.safetensors")).policy
    assert policy.actions == ActionRanges((0.1, 29.9), (1, 2))
    assert policy.history["seed"] == 9
    again = called(*arguments, cwd=tmp_path)
    assert again.returncode == 2
    assert "policy.safetensors exists already: choose another file, or --overwrite" in again.stderr
    done = command("run", "tiny.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 2
    wider = called("run", "tiny.toml", "--set", "model.hidden=9", cwd=tmp_path)
    assert wider.returncode == 2
    assert "trained for a last layer of 90 numbers, '3.weight' of this model has 100" in wider.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--defense is needed: one of median, fedavg"),
        (("--defense", "medan"), "defense 'medan' is unknown: did you mean 'median'?"),
        (("--defense", "median", "--steps", "0"), "steps must be at least 1, got 0"),
        (("--defense", "median", "--max-local-steps", "0"), "steps must be a range of whole numbers from 1 on"),
        (("--defense", "median", "--set", "data.malicious=0.0"), "needs at least one malicious client, got none"),
        (("--defense", "median", "--set", "data.malicious=0.05", "--set", "data.clients=200"), "at least 200 samples"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    done = called("train-attack", "tiny.toml", "--out", "x.safetensors", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_learned(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    arguments = ["train-attack", "tiny.toml", "--defense", "median", "--out", "x.safetensors", "--steps", "2000",
                 "--episode", "50", "--max-local-steps", "1", "--set", "data.malicious=0.5"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "cosdefense", *arguments],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (tmp_path / "x.safetensors").exists():
        assert time.monotonic() < deadline, "nothing was ever written"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "of 2000 decisions; what was learned so far is in x.safetensors" in said
    assert "Traceback" not in said
    assert LearnedPolicy(str(tmp_path / "x.safetensors")).policy.history["decisions"] >= 300
