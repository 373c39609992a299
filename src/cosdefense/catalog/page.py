"""docs/catalog.md, written from the code: every part with its formula, needs, options and reference."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ..core import Defense, Need
from .registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS, PRESETS, describe
from .signatures import description_of, explanations_of, first_line, needs_of, options_of, required_by

# The rows of Table 1 in the CosDefense paper, and the defense that stands for each of them here.
TABLE_1 = {
    "Krum": "krum",
    "Multi-Krum": "multi-krum",
    "Median": "median",
    "RFFL": "rffl",
    "FoolsGold": "foolsgold",
    "FLTrust": "fltrust",
    "ByGars": "bygars++",
    "SageFlow": "sageflow",
    "CosDefense": "cosdefense",
}
DIFFERENCES = {
    "RFFL": "The paper says that RFFL does not go with client sampling. Its authors do expect everybody in every "
    "round; here reputations belong to identities and a round shares out what its participants held before, so that "
    "absent clients lose nothing. What else differs is said at `rffl`, below.",
    "ByGars": "The row stands for ByGARS++, which remembers reputations. `bygars` finds them anew every round and "
    "keeps no memory.",
}

HEAD = """# Catalog

Written by `cosdefense list --markdown`; a test keeps it current. Here u is a client's update (new minus old), û its
direction, w the global model, n the number of clients in the round. Options are called the same in files and in Python.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_defenses(), *_table_1(), *_parts()]) + "\n"


def table_1() -> dict[str, tuple[bool, ...]]:
    """The paper's columns: goes with client sampling, server data, number of attackers, scores kept per client."""
    columns = (Need.SERVER_DATA, Need.ATTACKER_COUNT, Need.CLIENT_MEMORY)
    needs = {row: PRESETS[name]().needs for row, name in TABLE_1.items()}
    return {
        row: (Need.FULL_PARTICIPATION not in has, *(column in has for column in columns)) for row, has in needs.items()
    }


def _defenses() -> Iterator[str]:
    yield "## Defenses by name\n"
    yield _row(["name", "what it does", "made of", *(f"needs {need}" for need in Need)])
    yield _row(["---"] * (3 + len(Need)))
    for name, make in PRESETS.items():
        defense = make()
        yield _row([f"`{name}`", first_line(make), _made_of(defense), *_marks(need in defense.needs for need in Need)])
    yield ""


def _made_of(defense: Defense) -> str:
    table = describe(defense)
    parts = [*table["filters"], table["aggregator"], *table.get("hooks", ())]
    return " + ".join(f"`{part['name']}`" for part in parts)


def _table_1() -> Iterator[str]:
    yield "## Table 1 of the CosDefense paper, from the code\n"
    headings = ("client sampling", "server data", "number of attackers", "scores kept per client")
    yield _row(["", "here", *headings])
    yield _row(["---"] * (2 + len(headings)))
    for row, values in table_1().items():
        yield _row([row, f"`{TABLE_1[row]}`", *_marks(values)])
    yield ""
    yield from (f"* **{row}.** {text}" for row, text in DIFFERENCES.items())
    yield ""


def _parts() -> Iterator[str]:
    kinds: Mapping[str, Mapping[str, type]] = {
        "Filters": FILTERS,
        "Aggregators": AGGREGATORS,
        "Hooks (run by honest clients)": HOOKS,
        "Attacks": ATTACKS,
    }
    for title, parts in kinds.items():
        yield f"## {title}\n"
        for name, kind in parts.items():
            yield from _part(name, kind)


def _part(name: str, kind: type) -> Iterator[str]:
    about, _, rest = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n")
    yield f"### `{name}` · {kind.__name__}\n"
    yield f"{about}\n"
    yield from (f"{paragraph}\n" for paragraph in _paragraphs(description_of(kind)))
    needs = sorted(needs_of(kind)) if hasattr(kind, "needs") else []
    if needs:
        yield f"Needs: {', '.join(needs)}.\n"
    said = {**comments_of(kind), **explanations_of(kind)}
    for option in required_by(kind):
        yield f"* `{option}` (required)" + (f": {said[option]}" if option in said else "")
    for option, default in options_of(kind).items():
        shown = f"{default:.4g}" if isinstance(default, float) else f"{default}".lower()
        yield f"* `{option} = {shown}`" + (f": {said[option]}" if option in said else "")
    yield ""
    yield from (f"{paragraph}\n" for paragraph in _paragraphs(rest))


def comments_of(kind: type) -> dict[str, str]:
    """What the trailing comments say about the fields of a dataclass."""
    return dict(re.findall(r"^    (\w+): [^#\n]*  # (.+)$", inspect.getsource(kind), re.MULTILINE))


def _paragraphs(text: str) -> list[str]:
    """Lines joined; web addresses made links, without the punctuation that follows them."""
    joined = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return [re.sub(r"(https?://[^\s<>()]*[^\s<>().,;:])", r"<\1>", paragraph) for paragraph in joined if paragraph]


def _marks(values: Any) -> list[str]:
    return ["✓" if value else "–" for value in values]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
