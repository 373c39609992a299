"""Writes docs/catalog.md from the code: every part with its formula, needs, options and reference."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any

from ..attacks import Attack
from ..core import Defense, Need
from .facts import FACTS, SYMBOLS
from .registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS, PRESETS, PRESETS_BY_KIND, describe
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
# Defenses that are not in the paper's table, in the same columns.
ADDED_ROWS = {
    "Bucketing": "bucketing",
    "RFA": "rfa",
    "RLR": "rlr",
    "Centered clipping": "centered-clipping",
    "DnC": "dnc",
    "CRFL": "crfl",
    "SignGuard": "signguard",
    "FLAME": "flame",
    "DeepSight": "deepsight",
    "FLDetector": "fldetector",
    "NNM": "nnm",
    "Multi-Metrics": "multi-metrics",
    "FreqFed": "freqfed",
    "FedRoLA": "fedrola",
    "ARC": "arc",
    "LASA": "lasa",
    "AlignIns": "alignins",
    "Factions": "factions",
}
DIFFERENCES = {
    "RFFL": "The paper says that RFFL does not work with client sampling. Its authors expect all clients in every "
    "round. Here a reputation belongs to a client's identity, and clients that are absent keep theirs. See `rffl` "
    "below for other differences.",
    "ByGars": "The row stands for ByGARS++, which remembers reputations. `bygars` computes them in every round and "
    "keeps no memory.",
}

HEAD = """# Catalog

Written by `cosdefense list --markdown` from the docstrings; a test keeps it current.

In formulas, u is a client's update (new minus old), û its direction, w the global model, and n the
number of clients in the round. Options have the same names in experiment files and in Python.
[Reference checks](reference-checks.md) says which code or example each rule was checked against.
"""


def build_page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_wrap([*_describe_defenses(), *_describe_table_1(), *_describe_parts()])]) + "\n"


def table_1() -> dict[str, tuple[bool, ...]]:
    """The paper's columns: works with client sampling, server data, number of attackers, scores kept per client.

    The paper's rows come first.
    """
    columns = (Need.SERVER_DATA, Need.ATTACKER_COUNT, Need.CLIENT_MEMORY)
    needs = {row: PRESETS[name]().needs for row, name in (TABLE_1 | ADDED_ROWS).items()}
    return {
        row: (Need.FULL_PARTICIPATION not in has, *(column in has for column in columns)) for row, has in needs.items()
    }


def _describe_defenses() -> Iterator[str]:
    yield "## Defenses by name\n"
    yield f"Costs count operations at the server: {SYMBOLS}.\n"
    for kind, group in PRESETS_BY_KIND.items():
        yield f"### {kind.capitalize()}\n"
        yield _row(["name", "year", "what it does", "needs", "cost"])
        yield _row(["---"] * 5)
        for name, make in group.items():
            needs = ", ".join(sorted(make().needs)) or "–"
            yield _row([f"`{name}`", f"{FACTS[name].year}", first_line(make), needs, FACTS[name].cost])
        yield ""
    yield "### Parts and options\n"
    yield "* all of them"
    yield f"  * `buffers = median`: {explanations_of(Defense)['buffers']}"
    names = "`cosdefense`, `two-references`, `opposed-clusters`"
    yield f"  * `secure = false`: For {names}: judge what no server sees ([secure.md](secure.md))."
    for name, make in PRESETS.items():
        yield f"* `{name}`: {_name_parts(make())}"
        yield from (f"  {line}" for line in _list_options(make))
    yield ""


def _name_parts(defense: Defense) -> str:
    table = describe(defense)
    parts = [*table["filters"], table["aggregator"], *table.get("hooks", ())]
    return " + ".join(f"`{part['name']}`" for part in parts)


def _describe_table_1() -> Iterator[str]:
    yield "## Table 1 of the CosDefense paper, from the code\n"
    headings = ("client sampling", "server data", "number of attackers", "scores kept per client")
    yield _row(["", "here", *headings])
    yield _row(["---"] * (2 + len(headings)))
    for row, values in table_1().items():
        yield _row([row, f"`{(TABLE_1 | ADDED_ROWS)[row]}`", *_marks(values)])
    yield ""
    yield f"The paper has the rows from {next(iter(TABLE_1))} to {list(TABLE_1)[-1]}; the others were added here.\n"
    yield from (f"* **{row}.** {text}" for row, text in DIFFERENCES.items())
    yield ""


def _describe_parts() -> Iterator[str]:
    kinds: Mapping[str, Mapping[str, type]] = {
        "Filters": FILTERS,
        "Aggregators": AGGREGATORS,
        "Hooks (run by honest clients)": HOOKS,
        "Attacks": ATTACKS,
    }
    for title, parts in kinds.items():
        yield f"## {title}\n"
        for name, kind in parts.items():
            yield from _describe_part(name, kind)


def _describe_part(name: str, kind: type) -> Iterator[str]:
    about, _, rest = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n")
    yield f"### `{name}` · {kind.__name__}\n"
    yield f"{about}\n"
    yield from (f"{paragraph}\n" for paragraph in _paragraphs(description_of(kind)))
    needs = sorted(needs_of(kind)) if hasattr(kind, "needs") else []
    if needs:
        yield f"Needs: {', '.join(needs)}.\n"
    yield from _list_options(kind)
    yield ""
    yield from (f"{paragraph}\n" for paragraph in _paragraphs(rest))


def _list_options(target: Any) -> Iterator[str]:
    explained = explanations_of(target)
    for option in required_by(target):
        yield f"* `{option}` (required): {explained.get(option, '')}"
    for option, default in options_of(target).items():
        default = describe(default)["name"] if isinstance(default, Attack) else default
        shown = f"{default:.4g}" if isinstance(default, float) else f"{default}".lower()
        if isinstance(default, Defense):
            shown = _name_parts(default).replace("`", "")
        yield f"* `{option} = {shown}`: {explained.get(option, '')}"


def _wrap(lines: Iterable[str]) -> Iterator[str]:
    """Lines of at most 100 characters, except tables. What continues a list's entry is indented."""
    for line in lines:
        marker = re.match(r" *\* |", line)
        indent = " " * len(marker.group() if marker else "")
        wrapped = wrap(line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        yield line if line.startswith("|") or not wrapped else "\n".join(wrapped) + "\n" * line.endswith("\n")


def _paragraphs(text: str) -> list[str]:
    """Lines joined; web addresses made links, without the punctuation that follows them."""
    joined = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return [re.sub(r"(https?://[^\s<>()]*[^\s<>().,;:])", r"<\1>", paragraph) for paragraph in joined if paragraph]


def _marks(values: Any) -> list[str]:
    return ["✓" if value else "–" for value in values]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
