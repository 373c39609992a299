"""`cosdefense helper`: keys that fit each other, files that nobody else can read, nothing replaced."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from cosdefense.catalog.options import ConfigError
from cosdefense.cli.app import app
from cosdefense.secure.helper_config import HelperConfig, read_private_key
from cosdefense.secure.policy import Policy
from cosdefense.secure.terms import MEAN_ROWS
from cosdefense.secure.triple_files import Role, TripleFile


def run(*arguments: str | int | Path) -> str:
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


@pytest.mark.parametrize("host", ["", "ä.example", "a b", "-a", "a..b", "a" * 65, "256.0.0.1:1", "*.example.org"])
def test_a_bad_host_leaves_nothing_behind(tmp_path: Path, host: str) -> None:
    """A key that was written would stand in the way of the next try."""
    with pytest.raises(ConfigError, match="--host must be"):
        run("keys", tmp_path / "helper", "--host", host)
    with pytest.raises(ConfigError, match="--host must be"):
        run("leader-key", tmp_path / "leader.crt", "--host", host)
    assert list(tmp_path.iterdir()) == []


def test_a_host_may_be_an_address(tmp_path: Path) -> None:
    for i, host in enumerate(("127.0.0.1", "::1", "a-1.example.org")):
        run("keys", tmp_path / str(i), "--host", host)


def test_bad_settings_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        run("serve", tmp_path / "helper.toml")
    run("keys", tmp_path, "--host", "localhost")
    with pytest.raises(
        ConfigError, match=r"leader\.crt is needed, and does not exist"
    ):  # its operator did not send it yet
        run("serve", tmp_path / "helper.toml")
    for text in ("", "leader"):
        (tmp_path / "leader.crt").write_text(text)
        with pytest.raises(ConfigError, match=r"leader\.crt is no certificate"):
            run("serve", tmp_path / "helper.toml")
    (tmp_path / "helper.state").write_text("{")
    with pytest.raises(ConfigError, match="state cannot be read"):
        run("serve", tmp_path / "helper.toml")


def test_dealt_triples_fit_each_other(tmp_path: Path) -> None:
    told = run("deal", tmp_path / "triples", "--clients", 5, "--rounds", 7)
    assert "7 rounds of at most 5 clients" in told
    files = [TripleFile(tmp_path / "triples" / f"{role}.triples", role) for role in get_args(Role)]
    assert [(file.clients, file.count) for file in files] == [(5 + MEAN_ROWS, 7)] * 2
    assert files[0].deal == files[1].deal
    for file in files:
        file.close()
    with pytest.raises(ConfigError, match="exists already"):
        run("deal", tmp_path / "triples", "--clients", 5, "--rounds", 7)
    run("keys", tmp_path, "--host", "localhost")
    run("leader-key", tmp_path / "leader.crt")
    settings = tmp_path / "helper.toml"
    settings.write_text(settings.read_text().replace("# triples", "triples"))
    with pytest.raises(ConfigError, match=r"helper\.triples cannot be read"):
        run("serve", settings)
