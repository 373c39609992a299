"""cosdefense train-attack: learn how to attack one defense."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..catalog.options import ConfigError, unknown_name_error
from . import console, results
from .options import Changes, DataDir, Device, Json
from .progress import DownloadProgress, progress_bars, training_progress

if TYPE_CHECKING:
    from ..reinforcement import TrainingOptions

EPILOG = (
    "Example: cosdefense train-attack experiments/learned-attack.toml --defense clipping-median "
    "--out policy.safetensors --seed 100. Use it in an experiment as an attack with name = 'learned-policy' and "
    "path = 'policy.safetensors'."
)


def train_attack(
    file: Annotated[Path, typer.Argument(help="An experiment as TOML: its data, model and training are attacked.")],
    out: Annotated[Path, typer.Option(help="Where to write the policy, a safetensors file.", dir_okay=False)],
    defense: Annotated[
        str | None, typer.Option(help="The label of the defense to attack, if the file has several.")
    ] = None,
    steps: Annotated[int, typer.Option(help="How many decisions to learn from: rounds with attackers in them.")] = 5000,
    seed: Annotated[
        int, typer.Option(help="Decides who is malicious, with which data, and how training proceeds.")
    ] = 0,
    episode: Annotated[int, typer.Option(help="Decisions until the federation starts again.")] = 100,
    max_magnitude: Annotated[
        float, typer.Option(help="The largest factor by which the policy may scale updates.")
    ] = 29.9,
    max_local_steps: Annotated[int, typer.Option(help="The most local steps that the policy may choose.")] = 10,
    changes: Changes = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a policy that is already there.")] = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Train the policy of a learned attack against one defense. Needs gymnasium and stable-baselines3, the extra "rl".

    The malicious clients of the experiment simulate its federation on their own data alone, against the same defense.
    They learn by reinforcement (TD3) by how much to scale their updates and how many local steps to train. The attacks
    of the file are not used. Ctrl-C saves the policy so far; training again starts from the beginning. On a CPU it runs
    on one thread.
    """
    import torch

    from ..reinforcement import TrainingInterrupted, train_policy
    from ..runs.data_section import load_dataset
    from ..runs.device import choose_device, reproducible
    from ..runs.experiment_file import load
    from ..runs.memory import keep_freed_memory
    from ..runs.prepare import dry_run

    # The file's own attacks may name the very policy that is still to be made.
    experiment = load(file, (*(changes or ()), f"seeds=[{seed}]", 'attacks=[{name="none"}]'))
    labels = {entry.label: entry for entry in experiment.defenses}
    if defense is None and len(labels) > 1:
        raise ConfigError(f"--defense is needed: one of {', '.join(labels)}")
    if defense is not None and defense not in labels:
        raise unknown_name_error("defense", defense, labels)
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists already: choose another file, or --overwrite")
    cell = replace(experiment, defenses=(labels[defense] if defense else experiment.defenses[0],))
    options = _training_options(steps, episode, max_magnitude, max_local_steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    chosen = choose_device(device)
    if chosen.type == "cpu":
        torch.set_num_threads(1)  # clients are small, and one thread gives the same policy on any number of cores
    keep_freed_memory()
    try:
        with progress_bars() as bars, reproducible(tf32=cell.training.tf32):
            dataset = load_dataset(cell, data_dir, progress=DownloadProgress(bars))
            dry_run(cell, dataset)
            trained = train_policy(cell, dataset, chosen, out, options, training_progress(bars, steps))
    except TrainingInterrupted as stopped:
        kept = f"what was learned so far is in {out}" if stopped.written else "nothing was learned yet"
        console.fail(f"interrupted after {stopped.steps} of {steps} decisions; {kept}", 130)
    except KeyboardInterrupt:
        console.fail("interrupted; nothing was learned yet", 130)
    results.show_trained(trained, as_json)


def _training_options(steps: int, episode: int, max_magnitude: float, max_local_steps: int) -> TrainingOptions:
    from ..attacks.policy_network import ActionRanges
    from ..reinforcement import TrainingOptions

    try:
        actions = ActionRanges((min(0.1, max_magnitude), max_magnitude), (1, max_local_steps))
        return TrainingOptions(steps=steps, episode_length=episode, actions=actions)
    except ValueError as error:
        raise ConfigError(str(error)) from error
