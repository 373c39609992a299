"""The catalog page says what the code does, and the paper's Table 1 comes out of it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from cosdefense.catalog.facts import FACTS
from cosdefense.catalog.page import ADDED_ROWS, DIFFERENCES, build_page, table_1
from cosdefense.catalog.registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS, PRESETS, PRESETS_BY_KIND
from cosdefense.catalog.signatures import explanations_of, options_of, required_by
from cosdefense.cli.list import Kind
from cosdefense.cli.listing import entries, tables

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"

# As printed: client sampling, validation data at the server, number of attackers, client scores at the server.
PRINTED = {
    "Krum": (True, False, True, False),
    "Multi-Krum": (True, False, True, False),
    "Median": (True, False, False, False),
    "RFFL": (False, False, False, True),
    "FoolsGold": (True, False, False, True),
    "FLTrust": (True, True, False, False),
    "ByGars": (True, True, False, True),
    "SageFlow": (True, True, False, False),
    "CosDefense": (True, False, False, False),
}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == build_page(), (
        "write it again: cosdefense list --markdown > docs/catalog.md"
    )


def test_table_1_comes_out_as_printed() -> None:
    found = table_1()
    assert list(found)[: len(PRINTED)] == list(PRINTED)
    different = {row for row in PRINTED if found[row] != PRINTED[row]}
    # Ours takes RFFL to sampled clients (tests/test_behavior.py shows it at work); nothing else may differ.
    assert different == {"RFFL"}
    assert found["RFFL"] == (True, *PRINTED["RFFL"][1:])
    assert different <= set(DIFFERENCES)
    unwrapped = " ".join(PAGE.read_text(encoding="utf-8").split())
    for text in DIFFERENCES.values():
        assert text in unwrapped


def test_added_rows_of_table_1() -> None:
    """Computed from what each rule needs: pinned here for some."""
    found = table_1()
    assert set(ADDED_ROWS) == set(found) - set(PRINTED)
    assert found["FLAME"] == (True, False, False, False)
    assert found["NNM"] == (True, False, True, False)
    assert found["FLDetector"] == (False, False, False, True)


def test_every_defense_has_a_kind_a_year_and_a_cost() -> None:
    assert list(FACTS) == list(PRESETS)
    for entry in entries(Kind.defenses):
        assert entry["kind"] in PRESETS_BY_KIND
        assert 2016 < entry["year"] < 2030
        assert re.search(r"\bn\b|n²", entry["cost"])


@pytest.mark.parametrize("width", [80, 100])
def test_the_list_fits_a_terminal(width: int) -> None:
    """No word is cut and no column vanishes."""
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables(Kind.defenses):
        console.print(table)
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for name, facts in FACTS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
        assert str(facts.year) in row
    for kind in PRESETS_BY_KIND:
        assert f"defenses: {kind}" in text


EXPLAINED = {
    kind.__name__: kind for kinds in (FILTERS, AGGREGATORS, HOOKS, ATTACKS, PRESETS) for kind in kinds.values()
}


@pytest.mark.parametrize("target", EXPLAINED.values(), ids=EXPLAINED)
def test_every_option_is_explained(target: Callable[..., object]) -> None:
    """And nothing is explained that is not an option."""
    assert {*options_of(target), *required_by(target)} == {*explanations_of(target)}


def test_every_part_and_preset_is_on_the_page() -> None:
    text = build_page()
    for name in (*FILTERS, *AGGREGATORS, *HOOKS, *ATTACKS):
        assert f"### `{name}`" in text
    for name in PRESETS:
        assert f"| `{name}` |" in text


def test_lines_are_short() -> None:
    for line in build_page().splitlines():
        assert len(line) <= 100 or line.startswith("|"), line


def test_web_addresses_are_well_formed() -> None:
    """A link that ends in punctuation, or is not closed, leads nowhere."""
    text = build_page()
    links = re.findall(r"<(http[^>]*)>", text)
    assert len(links) >= 20
    assert text.count("http") == len(links)  # every address is a link
    for link in links:
        parts = urlsplit(link)
        assert parts.scheme == "https", link
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), link
        assert re.fullmatch(r"[\w/.\-]*[\w/]", parts.path), link


def test_needs_are_listed() -> None:
    needs = {entry["name"]: entry["needs"] for entry in entries(Kind.defenses)}
    assert needs["fedavg"] == []
    assert needs["bygars++"] == ["memory per client", "server data"]
    assert needs["fat"] == ["code on clients"]
    assert "needs" not in entries(Kind.attacks)[0]
