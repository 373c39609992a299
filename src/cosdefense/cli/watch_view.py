"""A run on a terminal: the same content as on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..runs.safe_text import printable

BARS = "▁▂▃▄▅▆▇█"
SILENT = ("late", "unsent")
UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def render(state: Mapping[str, Any], height: int = 40) -> RenderableType:
    """Status, totals, alarms, nodes and the last rounds, in about as many lines as the terminal has."""
    lines: list[RenderableType] = [
        Text.assemble((_text(state.get("title", "no records yet")), "bold"), f" · {status(state)}")
    ]
    if "title" not in state:
        return Group(*lines)
    lines += [Text(_totals(state)), *_curve(state.get("evaluations", []))]
    lines += [_alarm_line(alarm) for alarm in state["alarms"][-5:]]
    n_left = max(6, height - len(lines) - 8)
    n_rounds = max(3, n_left // 3)
    lines += [_node_table(state["nodes"][: max(3, n_left - n_rounds)], state["n_nodes"])]
    lines += [_round_table(state["rounds"][-n_rounds:])]
    return Group(*lines)


def status(state: Mapping[str, Any]) -> str:
    """In words, with the folder."""
    words = {"waiting": "waiting for the first round", "stopped": "stopped: no process is writing to this run"}
    error = f": {_text(state['error'])}" if state.get("error") else ""
    return f"{words.get(state['status'], _text(state['status']))}{error} · {_text(state.get('folder', ''))}"


def round_line(row: Mapping[str, Any]) -> str:
    """One round on one line, for a log."""
    rejected = ", ".join(_rejection(entry) for entry in row["rejected"])
    more = f" and {row['n_rejected'] - len(row['rejected'])} more" if row["n_rejected"] > len(row["rejected"]) else ""
    parts = [
        f"round {row['round'] + 1}",
        "" if row["accuracy"] is None else f"accuracy {row['accuracy']:.1%}",
        f"{row['n_accepted']} of {row['n_clients']} accepted",
        f"rejected: {rejected}{more}" if rejected else "",
        "" if row["skipped"] is None else f"skipped: {_text(row['skipped'])}",
        f"{sum(_known(row['seconds'])):.1f} s",
    ]
    return ", ".join(part for part in parts if part)


def alarm_text(alarm: Mapping[str, Any]) -> str:
    who = "" if alarm["node"] is None else f"node {_text(alarm['node'])}: "
    over = "" if alarm["until"] is None else f" (over since round {alarm['until'] + 1})"
    return f"{_text(alarm['rule'])}: {who}{_text(alarm['message'])}, since round {alarm['round'] + 1}{over}"


def _totals(state: Mapping[str, Any]) -> str:
    planned = f" of {state['planned']}" if state["planned"] else ""
    accuracy = "not evaluated" if state["accuracy"] is None else f"accuracy {state['accuracy']:.1%}"
    best = "" if state["best_accuracy"] is None else f" (best {state['best_accuracy']:.1%})"
    loss = "" if state["loss"] is None else f", loss {state['loss']:.3g}"
    reasons = ", ".join(f"{_text(reason)} {n}" for reason, n in state["rejected"].items())
    phases = ", ".join(f"{_text(phase)} {seconds:.1f} s" for phase, seconds in _items(state["seconds"]))
    data = ", ".join(f"{_text(phase)} {_size(n_bytes)}" for phase, n_bytes in _items(state["n_bytes"]))
    return "\n".join(
        filter(None, (
            f"{state['n_rounds']}{planned} rounds, {state['n_skipped']} skipped · {accuracy}{best}{loss}",
            f"{state['n_accepted']} replies accepted · rejected: {reasons or 'none'}",
            " · ".join(filter(None, (phases, data))),
        ))
    )  # fmt: skip


def _curve(evaluations: Sequence[Sequence[Any]], width: int = 60) -> list[Text]:
    values = [point[1] for point in evaluations if point[1] is not None]
    if len(values) < 2:
        return []
    shown = [
        values[index * (len(values) - 1) // (min(width, len(values)) - 1)] for index in range(min(width, len(values)))
    ]
    bars = "".join(BARS[min(len(BARS) - 1, max(0, int(value * len(BARS))))] for value in shown)
    return [Text.assemble("accuracy ", (bars, "blue"))]


def _alarm_line(alarm: Mapping[str, Any]) -> Text:
    return Text(f"ALARM {alarm_text(alarm)}", style="bold red")


def _node_table(nodes: Sequence[Mapping[str, Any]], n_nodes: int) -> Table:
    table = Table(title=f"nodes ({len(nodes)} of {n_nodes})", title_justify="left", box=None, pad_edge=False)
    for name in ("node", "last rounds", "accepted", "rejected because", "last scores"):
        table.add_column(name, justify="right" if name == "accepted" else "left", overflow="ellipsis", no_wrap=True)
    for node in nodes:
        reasons = ", ".join(f"{_text(reason)} {n}×" for reason, n in node["reasons"].items())
        table.add_row(
            Text(_text(node["name"])), _strip(node["outcomes"]), f"{node['n_accepted']} of {node['n_asked']}",
            Text(reasons or "–"), Text(_scores(node["scores"]) or "–"),
        )  # fmt: skip
    return table


def _round_table(rounds: Sequence[Mapping[str, Any]]) -> Group:
    lines = [Text(round_line(row), no_wrap=True, overflow="ellipsis") for row in reversed(rounds)]
    return Group(Rule("last rounds", align="left", style="dim"), *lines)


def _strip(outcomes: Sequence[str]) -> Text:
    strip = Text()
    for outcome in outcomes:
        if outcome == "accepted":
            strip.append("▄", "blue")
        else:
            strip.append(*(("▁", "dim") if outcome in SILENT else ("█", "red")))
    return strip


def _rejection(entry: Mapping[str, Any]) -> str:
    scores = _scores(entry["scores"])
    return f"{_text(entry['node'])} {_text(entry['reason'])}{f' ({scores})' if scores else ''}"


def _scores(scores: Mapping[str, int | float | None]) -> str:
    return ", ".join(f"{_text(name)} {score:.3g}" for name, score in _items(scores))


def _items(values: Mapping[str, int | float | None]) -> Iterable[tuple[str, int | float]]:
    return ((name, value) for name, value in values.items() if value is not None)


def _known(values: Mapping[str, int | float | None]) -> list[int | float]:
    return [value for _, value in _items(values)]


def _size(n_bytes: int | float) -> str:
    power = 0
    while n_bytes >= 1000 and power < len(UNITS) - 1:
        n_bytes, power = n_bytes / 1000, power + 1
    return f"{n_bytes:.3g} {UNITS[power]}"


def _text(value: object) -> str:
    """Once more: a server on another computer may send anything."""
    return printable(value)
