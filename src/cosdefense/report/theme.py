"""How charts look: colors that color-blind readers can tell apart, and one Vega configuration for page and paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Okabe and Ito, "Color Universal Design" (2008), without its yellow, which vanishes on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
DASHES = ((1, 0), (6, 3), (2, 2))  # the palette's second and third time around
TRUTH = {"honest": "#0072B2", "malicious": "#D55E00", "client": "#888888"}
HEAT = ("rgba(0,90,150,0.05)", "rgba(0,90,150,1)")  # see-through, so that it fits a light and a dark page
HARM = ("rgba(170,40,0,0.03)", "rgba(170,40,0,1)")  # of what is lost: more is worse

PAPER = {"ink": "#1c2128", "muted": "#59636e", "grid": "#e4e8ec", "font": "Arial, Liberation Sans, sans-serif"}
# The page's own CSS variables: charts follow light, dark and print without being drawn again.
PAGE = {"ink": "var(--ink)", "muted": "var(--muted)", "grid": "var(--grid)", "font": "system-ui, sans-serif"}


def colors(n: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(n)]


def dashes(n: int) -> list[tuple[int, ...]]:
    return [DASHES[index // len(PALETTE) % len(DASHES)] for index in range(n)]


def config(look: Mapping[str, str]) -> dict[str, Any]:
    """A Vega-Lite configuration in the given colors and font."""
    words = {"labelColor": look["muted"], "titleColor": look["ink"], "labelFontSize": 12, "titleFontSize": 13}
    return {
        "aria": False,  # the page describes every chart in one sentence instead of a thousand marks
        "background": "transparent",
        "font": look["font"],
        "view": {"stroke": None},
        "axis": {**words, "titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6, "labelLimit": 140}
        | {"gridColor": look["grid"], "domainColor": look["muted"], "tickColor": look["muted"], "tickSize": 4},
        "legend": {**words, "labelColor": look["ink"], "labelFontSize": 13, "titleFontWeight": "normal"},
        "title": {
            "color": look["ink"],
            "subtitleColor": look["muted"],
            "fontSize": 14,
            "anchor": "start",
            "offset": 12,
        },
        "style": {
            "guide-rule": {"color": look["muted"], "strokeWidth": 1.25, "strokeDash": [4, 3]},
            "guide-text": {"color": look["muted"], "fontSize": 12},
            "ink-rule": {"color": look["ink"], "strokeWidth": 1.5},
            "ink-dot": {"color": look["ink"], "opacity": 0.6},
            "on-pale": {"color": look["ink"], "fontSize": 13},
            "on-deep": {"color": "#ffffff", "fontSize": 13},
        },
    }
