"""The files of deploy/ and the commands of the two operators' guides, as far as they run without a real server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason='flwr, the extra "flower", is not installed here')

from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
from loopback import COMMANDS

ROOT = Path(__file__).parents[2]
DEPLOY, SERVER, NODE = ROOT / "deploy", ROOT / "docs" / "server.md", ROOT / "docs" / "node.md"
FILES = [SERVER, NODE, *sorted(DEPLOY.iterdir())]
APP = Path(__file__).parent / "steps_app"


def join_lines(text: str) -> str:
    return re.sub(r"\s*\\\n\s*", " ", text)


# ---- options of Flower's commands


@pytest.mark.slow
@pytest.mark.parametrize("program", ["flower-superlink", "flower-supernode"])
def test_options_of_flowers_commands_exist(program: str) -> None:
    shown = subprocess.run([COMMANDS / program, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z-]+", shown))
    used = set()
    for file in FILES:
        for command in re.findall(rf"{program} (--[^\n`]+)", join_lines(file.read_text(encoding="utf-8"))):
            used |= set(re.findall(r"(?<=\s)--[a-z-]+", " " + command))
    assert len(used) >= 4
    assert used <= known


@pytest.mark.parametrize("file", ["superlink.service", "serve.sh"])
def test_the_superlink_listens_on_the_loopback_address_and_knows_its_nodes(file: str) -> None:
    text = join_lines((DEPLOY / file).read_text(encoding="utf-8"))
    (command,) = re.findall(r"flower-superlink (--[^\n]+)", text)
    assert "--host 127.0.0.1 --port 8000" in command
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command


def test_the_commands_of_the_guide_start_no_supernode_as_root() -> None:
    """The guide's shell is root's, who could unpack any app and execute it: the approved apps would mean nothing."""
    commands = [line for block in read_blocks(NODE) for line in block.splitlines() if "flower-supernode" in line]
    assert commands
    assert all(command.startswith("setpriv --reuid=cosdefense") for command in commands)


# ---- installation and upgrades

PACKAGES = {"nginx -t": "nginx", "openssl req": "openssl", "ssh-keygen": "openssh-client", "unzip": "unzip"}


def read_blocks(guide: Path) -> list[str]:
    return re.findall(r"^ *```bash\n(.*?)```", join_lines(guide.read_text(encoding="utf-8")), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("guide", [SERVER, NODE], ids=["server", "node"])
def test_a_guide_installs_the_programs_that_it_calls(guide: Path) -> None:
    """A new Debian has none of them."""
    blocks = read_blocks(guide)
    (installed,) = [set(line.split()) for block in blocks for line in block.splitlines() if "apt-get install" in line]
    called = {
        package for command, package in PACKAGES.items() for block in blocks if re.search(rf"^ *{command}", block, re.M)
    }
    assert called
    assert called <= installed


@pytest.mark.parametrize("guide", [SERVER, NODE], ids=["server", "node"])
def test_only_the_new_wheel_is_installed(guide: Path) -> None:
    """With the wheel of an earlier version beside it, `ls` would print two names, here and in the container files."""
    steps = [block for block in read_blocks(guide) if "pip wheel" in block]
    assert len(steps) == 2  # install and upgrade
    assert all(re.search(r"rm -rf dist\n.*pip wheel .*--wheel-dir dist \.\n.*\$\(ls dist/", block) for block in steps)


def test_the_user_of_the_nodes_container_can_read_the_key() -> None:
    (user,) = re.findall(r"useradd --uid (\d+) ", (DEPLOY / "node.Containerfile").read_text(encoding="utf-8"))
    (block,) = [block for block in read_blocks(NODE) if "docker run" in block]
    assert f"chown {user} /etc/cosdefense/node.key\n" in block


# ---- certificates


def test_the_certificates_of_the_guide_are_valid_for_nodes_and_the_proxy(tmp_path: Path) -> None:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    (block,) = [block for block in read_blocks(SERVER) if "openssl req" in block]
    commands = block.replace("/etc/cosdefense", str(tmp_path))
    subprocess.run(["bash", "-euc", commands], check=True, capture_output=True)
    for name in ("federation.example.org", "localhost"):
        check = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "-verify_hostname", name, "server.crt"]
        subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {
        "ca.key": 0o600, "server.key": 0o600,
    }  # fmt: skip


# ---- service units and container files


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    """With a program and a user that exist here."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    text = (DEPLOY / f"{name}.service").read_text(encoding="utf-8")
    assert f"/opt/cosdefense/bin/flower-{name}" in text
    text = text.replace(f"/opt/cosdefense/bin/flower-{name}", "/bin/true").replace("User=cosdefense", "User=daemon")
    (tmp_path / f"{name}.service").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / f"{name}.service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["server", "node"])
def test_a_container_copies_files_that_exist(name: str) -> None:
    text = join_lines((DEPLOY / f"{name}.Containerfile").read_text(encoding="utf-8"))
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in shlex.split(line)]
    built_or_given = ("dist/", "apps/", "--")  # the wheel, and the apps that a node's operator approved
    assert all((ROOT / word).is_file() for word in copied if not word.startswith(built_or_given))
    assert "dist/*.whl" in copied


def test_the_script_of_the_servers_container_is_valid() -> None:
    subprocess.run(["bash", "-n", DEPLOY / "serve.sh"], check=True)


# ---- a node runs only apps that its operator has installed


def build_app() -> bytes:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a package that flwr uses
        return build_fab_from_disk(APP)


INSTALL = """
import os, sys
from flwr.cli.install import install_from_fab
fab = open(sys.argv[1], "rb").read()
if os.getuid() == 0:
    "".encode("cp437")  # which zipfile needs and this Python may be hidden from other users
    os.setgid(65534), os.setuid(65534)  # root may write everywhere
install_from_fab(fab, skip_prompt=True)  # as the process of a ClientApp does
"""


@pytest.mark.slow
def test_a_node_that_cannot_write_to_flwr_home_runs_no_other_app(tmp_path: Path) -> None:
    (tmp_path / "other.fab").write_bytes(build_app())
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "apps").mkdir()
        for folder in (home / "apps", home):
            folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", INSTALL, tmp_path / "other.fab"], capture_output=True, text=True, check=False,
            env={**os.environ, "FLWR_HOME": name},
        )  # fmt: skip
        installed = list((home / "apps").iterdir())
        home.chmod(0o755)
    assert re.search(rf"PermissionError: .*{name}/apps/", done.stderr), done.stderr
    assert not installed


def test_an_installed_app_is_executed_as_it_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server sends is not unpacked over it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    fab = build_app()
    approved = install_from_fab(fab, skip_prompt=True) / "steps" / "client_app.py"
    approved.write_text("# looked at")
    install_from_fab(fab, skip_prompt=True)
    assert approved.read_text() == "# looked at"
