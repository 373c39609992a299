"""cosdefense helper: the second server of secure aggregation, and the keys that it needs."""

from __future__ import annotations

import ipaddress
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..catalog.extras import install_hint
from ..catalog.options import ConfigError
from . import console

helper_app = typer.Typer(
    help="The second server of secure aggregation, and its keys. Not audited: see docs/secure.md.",
    no_args_is_help=True,
    epilog='Needs the extra "secure".',
)

Days = Annotated[int, typer.Option(help="How long the certificate is valid.", min=1, max=3650)]
TEMPLATE = """\
listen = "0.0.0.0:8443"
certificate = "helper.crt"         # its private key is helper.key
leader_authority = "leader.crt"    # the leader's certificate, from its operator: nobody else can connect
identity = "identity.pem"          # signs tickets
roster = "nodes.toml"              # name = "public key", one line for each node; read again for every round
state = "helper.state"             # which rounds were settled; must not be lost or copied back. Beside it: its half of
                                   # a running mean, if the rule keeps one; if that is lost, the mean starts again
smallest = 3                       # the fewest clients in a sum: two more than may collude with the leader
quorum = 3                         # the fewest valid reports
max_clients = 1000
max_coordinates = 50_000_000
max_settlements = 2                # sums in a row on one model; the second is for a leader that lost the first
norms = false                      # whether norms of updates may be opened, which NormLimit needs
# triples = "helper.triples"       # a dealer's: then products of updates may be opened, which Factions needs
"""


@helper_app.command(epilog="Example: cosdefense helper serve helper.toml")
def serve(settings: Annotated[Path, typer.Argument(help="The settings, a TOML file.")]) -> None:
    """Run a helper until it is stopped. It must not run at the operator of the Flower server."""
    _check_installed()
    from ..secure.helper_config import BadSettings
    from ..secure.helper_state import BrokenState
    from ..secure.service import serve
    from ..secure.triple_files import BadTriples

    try:
        serve(settings)
    except (BadSettings, BrokenState, BadTriples) as problem:
        raise ConfigError(str(problem)) from problem


@helper_app.command(epilog="Example: cosdefense helper keys helper --host helper.example.org")
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")],
    host: Annotated[str, typer.Option(help="The name or address under which the leader reaches the helper.")],
    days: Days = 365,
) -> None:
    """Make a helper's identity, TLS certificate and settings."""
    _check_installed()
    from ..secure.keys import make_certificate, make_signing_key

    _check_host(host)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_existing(*(folder / name for name in ("identity.pem", "helper.crt", "helper.key", "helper.toml")))
    identity = make_signing_key(folder / "identity.pem")
    make_certificate(folder / "helper.crt", host, days, server=True)
    (folder / "helper.toml").write_text(TEMPLATE, encoding="utf-8")
    (folder / "nodes.toml").touch()
    for line in (
        f"Wrote {folder}/identity.pem, helper.key (keep both secret), helper.crt, helper.toml and nodes.toml.",
        f"For the leader: {folder}/helper.crt",
        f"For every node, from you and not from the leader: secure-helper={identity}",
    ):
        console.out.print(line, soft_wrap=True)


@helper_app.command("leader-key", epilog="Example: cosdefense helper leader-key leader.crt --host fl.example.com")
def leader_key(
    file: Annotated[Path, typer.Argument(help="Where to write the certificate, *.crt.")],
    host: Annotated[str, typer.Option(help="A name for the leader; it shows in the certificate.")] = "leader",
    days: Days = 365,
) -> None:
    """Make the TLS certificate by which a helper knows the leader."""
    _check_installed()
    from ..secure.keys import make_certificate

    _check_host(host)
    if file.suffix != ".crt":
        raise ConfigError(f"the certificate must end in .crt, got {file}")
    _refuse_existing(file, file.with_suffix(".key"))
    make_certificate(file, host, days, server=False)
    console.out.print(f"Wrote {file.with_suffix('.key')} (keep it secret) and {file}.", soft_wrap=True)
    console.out.print(f"For the helper, as leader_authority: {file}", soft_wrap=True)


@helper_app.command("node-key", epilog="Example: cosdefense helper node-key node.pem --name hospital-a")
def node_key(
    file: Annotated[Path, typer.Argument(help="Where to write the private key.")],
    name: Annotated[str, typer.Option(help="The node's name in the roster.")],
) -> None:
    """Make a node's key, and print its line for the helper's roster."""
    _check_installed()
    from ..secure.keys import make_signing_key

    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise ConfigError(f"a node's name needs letters, digits, - and _, got {name!r}")
    _refuse_existing(file)
    public = make_signing_key(file)
    console.err.print(f"Wrote {file} (keep it secret). For the helper's roster:", soft_wrap=True)
    console.out.print(f'{name} = "{public}"', soft_wrap=True)


@helper_app.command(epilog="Example: cosdefense helper deal triples --clients 10 --rounds 1000")
def deal(
    folder: Annotated[Path, typer.Argument(help="Where to write the two files.")],
    clients: Annotated[int, typer.Option(help="The most clients of a round.", min=3, max=1000)],
    rounds: Annotated[int, typer.Option(help="How many rounds the triples are for.", min=1)],
) -> None:
    """Deal random numbers for rules that compare clients. Run it at neither of the two servers' operators."""
    _check_installed()
    from ..secure.terms import MEAN_ROWS
    from ..secure.triple_files import deal_files

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = folder / "leader.triples", folder / "helper.triples"
    _refuse_existing(*files)
    deal_files(*files, clients + MEAN_ROWS, rounds)  # with rows for a running mean, in case that the rule keeps one
    for line in (
        f"Wrote {files[0]} and {files[1]}: {rounds} rounds of at most {clients} clients.",
        "Give each file to its server's operator alone, then delete both: whoever has both can read projections.",
    ):
        console.out.print(line, soft_wrap=True)


def _check_host(host: str) -> None:
    name = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if len(host) > 64 or not re.fullmatch(rf"{name}(\.{name})*", host):  # the longest name that a certificate takes
            raise ConfigError(f"--host must be an address or a name of at most 64 letters, got {host!r}") from None


def _refuse_existing(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already: keys are never replaced")


def _check_installed() -> None:
    for module in ("cryptography", "starlette", "uvicorn"):
        if find_spec(module) is None:
            raise ConfigError(f"cosdefense helper needs {module}: {install_hint('secure')}")
