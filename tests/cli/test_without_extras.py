"""Without any extra the commands work: on the digits that are installed with the package, without figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import environment

# What the extras install, as Python imports it.
OF_EXTRAS = (
    "PIL", "pooch", "pyarrow", "datasets", "altair", "vl_convert", "jinja2", "flwr", "nvflare", "starlette", "uvicorn",
    "prometheus_client", "tensorboard", "mlflow", "wandb", "polars", "cryptography", "gymnasium", "stable_baselines3",
    "ray", "sklearn", "scipy", "pandas",
)  # fmt: skip
TOML = """
[data]
clients = 20
[training]
rounds = 2
sampled = 5
batch = 4
[[defenses]]
name = "factions"
"""


def run_without_extras(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules.update(dict.fromkeys({OF_EXTRAS})); from cosdefense.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_experiment_runs(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TOML)
    done = run_without_extras("run", "small.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "factions" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("COSDEFENSE_THOROUGH"), reason="a minute; COSDEFENSE_THOROUGH=1 runs it")
def test_the_demo_runs_and_says_why_nothing_was_drawn(tmp_path: Path) -> None:
    done = run_without_extras("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Factions" in done.stdout
    assert "nothing was drawn, because a report needs altair" in done.stderr
