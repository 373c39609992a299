"""A figure and its charts: drawn once, then put into the page or onto paper."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import Any

import altair as alt
import vl_convert
from PIL import Image

from .chart_data import Row
from .theme import PAPER, config

CHARACTER = 7  # pixels that a character of a subtitle takes
MIN_WORDS = 520  # pixels of a subtitle's line, also over a narrow chart: its labels need room beside it
HALF_PAGE = 580  # pixels of the page's width that one of two columns has
DATA = "rows"  # the name by which a chart refers to its panel's rows


@dataclass(frozen=True)
class Entry:
    """What a color means."""

    label: str
    color: str
    dash: tuple[int, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One chart of a figure."""

    title: str
    description: str  # for screen readers
    rows: list[Row]
    chart: alt.LayerChart
    min_width: int = 0  # pixels; a narrower page scrolls it

    def spec(self) -> dict[str, Any]:
        """The chart for the page: as wide as its container, names of colors left to the page, where they wrap."""
        spec = self.chart.properties(width="container").to_dict()
        for encoding in (layer["encoding"] for layer in spec["layer"]):
            for channel in ("color", "strokeDash"):
                if encoding.get(channel, {}).get("type") == "nominal":
                    encoding[channel]["legend"] = None
        return _with_rows(spec, {DATA: self.rows}) | {"autosize": {"type": "fit-x", "contains": "padding"}}


@dataclass(frozen=True)
class Figure:
    """A question and the charts that answer it."""

    name: str  # of the file, without its ending
    title: str
    caption: str
    panels: tuple[Panel, ...]
    width: int = 640  # of one panel on paper
    columns: int = 1
    legend: tuple[Entry, ...] = ()
    marks: str = ""  # what lines, bands, bars and dots mean; written into the picture, too
    pickable: bool = False  # the charts have a parameter "picked" that takes a label of the legend
    scale: float = 2.0  # of the pixels on paper
    own_colors: bool = False  # every panel has a scale of its own; otherwise they share one, and its legend

    @property
    def side_by_side(self) -> bool:
        """Whether the page shows two panels beside each other."""
        return len(self.panels) > 1 and all(panel.min_width <= HALF_PAGE for panel in self.panels)

    def chart_id(self, index: int) -> str:
        """The id of a panel's element on the page."""
        return f"chart-{self.name}-{index}"

    def png(self) -> bytes:
        """All panels on white paper."""
        several = len(self.panels) > 1
        charts = [
            _rename_rows(panel.chart, index).properties(width=self.width) for index, panel in enumerate(self.panels)
        ]
        if several:
            titles = [alt.Title(panel.title, frame="group") for panel in self.panels]
            charts = [chart.properties(title=title) for chart, title in zip(charts, titles, strict=True)]
        width = max(MIN_WORDS, self.width * min(self.columns, len(self.panels)))
        subtitle = ["" if several else self.panels[0].title, *wrap(self.marks, width // CHARACTER)]
        title = alt.Title(
            self.title,
            subtitle=list(filter(None, subtitle)),
            fontSize=18,
            subtitleFontSize=13,
            offset=16,
            frame="bounds",
        )
        paper = alt.concat(*charts, columns=self.columns, spacing=36, title=title)
        if self.own_colors:
            paper = paper.resolve_scale(color="independent")
        spec = _with_rows(paper.to_dict(), {f"{DATA}{index}": panel.rows for index, panel in enumerate(self.panels)})
        spec["config"] = config(PAPER) | {"background": "white", "padding": 20}
        return _reduce_colors(vl_convert.vegalite_to_png(spec, scale=self.scale))


def _reduce_colors(png: bytes) -> bytes:
    """The same picture in 256 colors: a fifth of the size, and a large heat map has 2,000 shades."""
    result = BytesIO()
    picture = Image.open(BytesIO(png)).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(result, "PNG", optimize=True)
    return result.getvalue()


def _rename_rows(chart: alt.LayerChart, index: int) -> alt.LayerChart:
    """The same chart with another name for its rows, so that it can stand beside others."""
    chart = chart.copy()
    for part in (chart, *chart.layer):
        if isinstance(part.data, alt.NamedData):
            part.data = alt.NamedData(f"{DATA}{index}")
    return chart


def _with_rows(spec: dict[str, Any], rows: dict[str, list[Row]]) -> dict[str, Any]:
    """The rows beside the chart: given to Altair, each of them would be validated on its own, slowly."""
    plain = {key: value for key, value in spec.items() if key not in ("$schema", "config")}  # an address; our own
    return plain | {"datasets": {**spec.get("datasets", {}), **rows}}
