"""`cosdefense helper`: keys that fit each other, files that nobody else can read, nothing replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cosdefense.catalog.options import ConfigError
from cosdefense.cli.app import app
from cosdefense.secure.helper_config import HelperConfig, read_private_key
from cosdefense.secure.policy import Policy


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["helper", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_keys_make_settings_that_can_be_loaded(tmp_path: Path) -> None:
    told = run("keys", tmp_path / "helper", "--host", "helper.example.org")
    config = HelperConfig.load(tmp_path / "helper" / "helper.toml")
    assert config.policy == Policy()  # the file states the defaults
    assert config.read_roster() == {}
    identity = config.read_identity().public_key().public_bytes_raw().hex()
    assert f"secure-helper={identity}" in told
    for secret in ("identity.pem", "helper.key"):
        assert (tmp_path / "helper" / secret).stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="exists already: keys are never replaced"):
        run("keys", tmp_path / "helper", "--host", "helper.example.org")


def test_a_node_key_fits_its_line_in_the_roster(tmp_path: Path) -> None:
    run("keys", tmp_path, "--host", "localhost")
    roster = "".join(run("node-key", tmp_path / f"{name}.pem", "--name", name) for name in ("ward-1", "ward-2"))
    (tmp_path / "nodes.toml").write_text(roster)
    keys = [read_private_key(tmp_path / f"{name}.pem").public_key().public_bytes_raw() for name in ("ward-1", "ward-2")]
    assert HelperConfig.load(tmp_path / "helper.toml").read_roster() == dict(
        zip(keys, ("ward-1", "ward-2"), strict=True)
    )
    with pytest.raises(ConfigError, match="exists already"):
        run("node-key", tmp_path / "ward-1.pem", "--name", "ward-1")
    for name in ("", 'a"b', "a b", "ä"):
        with pytest.raises(ConfigError, match="letters, digits"):
            run("node-key", tmp_path / "other.pem", "--name", name)


def test_a_leader_key(tmp_path: Path) -> None:
    run("leader-key", tmp_path / "leader.crt")
    assert (tmp_path / "leader.key").stat().st_mode & 0o777 == 0o600
    for path, needed in ((tmp_path / "leader.crt", "exists already"), (tmp_path / "leader.pem", "must end in .crt")):
        with pytest.raises(ConfigError, match=needed):
            run("leader-key", path)


def test_bad_settings_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        run("serve", tmp_path / "helper.toml")
    run("keys", tmp_path, "--host", "localhost")
    (tmp_path / "helper.state").write_text("{")
    with pytest.raises(ConfigError, match="state cannot be read"):
        run("serve", tmp_path / "helper.toml")
