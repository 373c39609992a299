"""The page of reference checks names every rule, and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from cosdefense.catalog.registry import AGGREGATORS, ATTACKS, FILTERS, HOOKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference-checks.md").read_text(encoding="utf-8")
# Older than the page, or this project's own: described where their tests are.
ELSEWHERE = {
    "cosdefense", "norm-limit", "near-duplicates", "opposed-clusters", "pca-clusters", "bulyan", "geometric-median",
    "mean", "median", "trimmed-mean", "norm-limited-mean", "two-references", "tapered-mean",
    "supported-references", "typical-norm-mean",
    "adversarial-training", "fl-wbc", "none", "adaptive",
    "camouflage", "inner-product", "label-flip", "learned-policy", "noise", "orthogonal-inner-product", "planning",
    "sign-flip",
}  # fmt: skip


def test_every_rule_is_on_the_page() -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    parts = {*FILTERS, *AGGREGATORS, *HOOKS, *ATTACKS}
    assert named | ELSEWHERE == parts
    assert not named & ELSEWHERE


def test_every_row_names_a_test_that_exists() -> None:
    for line in TEXT.splitlines():
        if line.startswith("| `"):
            paths = re.findall(r"`(tests/[^`]+)`", line)
            assert paths, line
            for path in paths:
                assert (ROOT / path).is_file(), path
