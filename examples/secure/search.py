"""Searches the folders of both servers for the updates of clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cosdefense import Layout
from cosdefense.filters import CosDefense
from cosdefense.flower.sent_model import SentModel
from cosdefense.secure.model import ModelParts
from cosdefense.secure.terms import Terms

PIECE, PIECES = 16, 64  # bytes, and how many of them each tensor is searched for

Arrays = Mapping[str, np.ndarray[Any, Any]]


def read_copies(folder: Path) -> Iterator[tuple[str, Arrays, Arrays]]:
    """Node and round, the model that it got, and the model that it trained."""
    for path in sorted(folder.glob("*-trained.npz")):
        yield path.stem.removesuffix("-trained"), np.load(str(path).replace("-trained", "-start")), np.load(path)


def read_terms(messages: Path, name: str) -> Terms:
    """The terms of a copy's round. They say how updates are encoded. Tickets have the numbers of rounds."""
    return Terms.from_json((messages / f"terms-{name.rpartition('-')[2]}").read_text())


def encode_update(start: Arrays, trained: Arrays, terms: Terms) -> dict[str, bytes]:
    """An update in every form that exists at the node before it is divided into halves."""
    model = SentModel.of(dict(start))
    update = model.compute_updates([dict(trained)])[0]
    layout = Layout.of(dict(start))
    parts = ModelParts(layout, None if terms.compares else layout.find_layer(CosDefense().layer))
    encoded = parts.encode(update, [] if terms.compares else parts.theta(model.params), terms)
    head = b"".join(int(value).to_bytes(16, "little", signed=True) for value in encoded.head)
    forms = {f"model: {name}": np.asarray(array).tobytes() for name, array in trained.items()}
    forms |= {f"update: {name}": update[where].numpy().tobytes() for name, where in model.layout.slices.items()}
    return forms | {"encoded words": encoded.words.tobytes(), "encoded head": head}


def encode_model(start: Arrays) -> dict[str, bytes]:
    """The global model, which is not secret."""
    return {name: np.asarray(array).tobytes() for name, array in start.items()}


def cut(data: bytes) -> Iterator[bytes]:
    """Pieces from all over the data that are unlikely to occur by chance."""
    starts = range(0, max(1, len(data) - PIECE), max(PIECE, len(data) // PIECES // 4 * 4))
    for piece in (data[at : at + PIECE] for at in starts):
        if len(piece) == PIECE and len(set(piece)) >= 6:
            yield piece


def find(forms: Mapping[str, bytes], files: Iterable[Path], public: bytes = b"") -> list[str]:
    """In which files which forms occur. Pieces that are public (weights that training did not change) do not count."""
    pieces = {name: [piece for piece in cut(data) if piece not in public] for name, data in forms.items()}
    hits = []
    for path in files:
        content = path.read_bytes()
        hits += [f"{path}: {name}" for name, some in pieces.items() if any(piece in content for piece in some)]
    return hits
