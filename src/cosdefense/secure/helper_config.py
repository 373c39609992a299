"""A helper's settings: one TOML file, a roster of nodes, and the files with its keys."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from .policy import Policy
from .streams import KEY


class BadSettings(ValueError):
    """A mistake in a helper's settings. The message names the file and the key."""


@dataclass(frozen=True)
class HelperConfig:
    """Where a helper listens, whom it serves, and where it remembers.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        certificate: The helper's TLS certificate. Its private key lies beside it, with the ending ".key".
        leader_authority: The authority that signed the leader's certificate. Nobody else can connect.
        identity: The private key that signs tickets.
        roster: The nodes that may take part: name = "public key".
        state: Where settled rounds are remembered.
        policy: What it agrees to.
        triples: The helper's file of a dealer's triples, with which updates may be compared. None: they may not.
    """

    host: str
    port: int
    certificate: Path
    leader_authority: Path
    identity: Path
    roster: Path
    state: Path
    policy: Policy
    triples: Path | None = None

    @property
    def certificate_key(self) -> Path:
        return self.certificate.with_suffix(".key")

    @classmethod
    def load(cls, path: Path) -> HelperConfig:
        """Read and check the settings. Paths are relative to the file."""
        table = _read_toml(path)
        limits = {field.name for field in fields(Policy)} - {"comparisons"}
        names = {"certificate", "leader_authority", "identity", "roster", "state"}
        known = names | limits | {"listen", "triples"}
        for key in table:
            if key not in known:
                raise BadSettings(f"{path}: {key!r} is unknown, known are {', '.join(sorted(known))}")
        for key in sorted(names | {"listen"} | ({"triples"} & set(table))):
            if not isinstance(table.get(key), str):
                raise BadSettings(f"{path}: {key} must be a text, got {table.get(key)!r}")
        for key in limits & set(table):
            if key == "norms" and type(table[key]) is not bool:
                raise BadSettings(f"{path}: norms must be true or false, got {table[key]!r}")
            if key != "norms" and (type(table[key]) is not int or table[key] < 1):
                raise BadSettings(f"{path}: {key} must be a whole number from 1, got {table[key]!r}")
        host, _, port = table["listen"].rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
            raise BadSettings(f'{path}: listen must be "address:port", got {table["listen"]!r}')
        paths = {name: path.parent / table[name] for name in names}
        triples = path.parent / table["triples"] if "triples" in table else None
        policy = Policy(**{key: table[key] for key in limits & set(table)}, comparisons=triples is not None)
        return cls(host.strip("[]"), int(port), policy=policy, triples=triples, **paths)

    def read_identity(self) -> Ed25519PrivateKey:
        """The key that signs tickets. A file that others can read is refused."""
        return read_private_key(self.identity)

    def read_roster(self) -> dict[bytes, str]:
        """Public keys and names of the nodes."""
        found: dict[bytes, str] = {}
        for name, text in _read_toml(self.roster).items():
            try:
                key = bytes.fromhex(text)
            except (TypeError, ValueError) as error:
                raise BadSettings(f"{self.roster}: {name} must be a public key in hexadecimal, got {text!r}") from error
            if len(key) != KEY or key in found:
                raise BadSettings(f"{self.roster}: {name} must be a key of its own of {KEY} bytes, got {text!r}")
            found[key] = name
        return found


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """An Ed25519 key in PEM."""
    try:
        if path.stat().st_mode & 0o077:
            raise BadSettings(f"{path} can be read by others: chmod 600 {path}")
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, BadSettings):
            raise
        raise BadSettings(f"{path} is not a readable private key: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadSettings(f"{path} must be an Ed25519 key")
    return key


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadSettings(f"{path} cannot be read: {error}") from error
