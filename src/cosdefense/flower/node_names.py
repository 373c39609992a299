"""Names of nodes, for people: an operator reads "hospital A" instead of a number of 19 digits."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.serverapp import Grid

from ..runs.safe_text import printable
from .pull_threads import SuperLinkLost

log = logging.getLogger("flwr")

MAX_LENGTH = 60  # characters of a name
Names = Mapping[int, str] | Mapping[str, str] | Mapping[int | str, str]


class NodeNames:
    """By node id, by public key, or as registered with `flwr supernode register --name`.

    Args:
        names: Id or public key → name, or a TOML or JSON file with this table. A public key is the content of a
            `.pub` file. It lasts longer than an id: nodes without authentication get a new id at every start.
    """

    def __init__(self, names: Names | Path | str | None = None) -> None:
        self._by_id: dict[int, str] = {}
        self._by_key: dict[bytes, str] = {}
        given = _read_file(Path(names)) if isinstance(names, Path | str) else names or {}
        for key, name in given.items():
            if not isinstance(name, str) or not name or printable(name, MAX_LENGTH) != name:
                raise ValueError(f"a node's name needs 1 to {MAX_LENGTH} printable characters, got {name!r:.80}")
            if isinstance(key, int) or key.isdecimal():
                self._by_id[int(key)] = name
            else:
                self._by_key[_read_key(key)] = name
        if len(set(given.values())) < len(given):
            raise ValueError(f"every node needs its own name, got {sorted(given.values())}")
        self._seen: set[int] = set()

    def look_up(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Ask the SuperLink for the keys and names of nodes that take part for the first time."""
        new = set(nodes) - self._seen
        if not new:
            return
        self._seen |= new
        try:
            infos = list(grid.get_nodes())
        except SuperLinkLost:
            raise
        except Exception as error:  # a name is not worth a run
            log.warning("the names of nodes are unknown: %s", printable(error))
            return
        for info in infos:
            name = self._by_key.get(info.public_key) or getattr(info, "name", "")
            if info.node_id in new and name:
                self._by_id.setdefault(info.node_id, printable(name, MAX_LENGTH))

    def get(self, node: int) -> str | None:
        return self._by_id.get(node)

    def label(self, node: int) -> str:
        """For a log."""
        name = self.get(node)
        return f"node {node}" if name is None else f"{name} (node {node})"


def _read_file(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    names = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(names, dict):
        raise ValueError(f"{path} needs a table of node ids or public keys and names, got {type(names).__name__}")
    return names


def _read_key(text: str) -> bytes:
    """A public key as a SuperLink stores it."""
    data = text.strip().encode()
    try:
        key = load_pem_public_key(data) if data.startswith(b"-----") else load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"needs a node id or the content of a node's .pub file, got {text!r:.80}") from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
