"""cosdefense watch: a run while it is made, on a terminal or as a live page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..catalog.options import ConfigError
from . import console

if TYPE_CHECKING:
    from ..monitor.view import Json

EPILOG = (
    "Examples: cosdefense watch runs/flower · cosdefense watch runs/flower --serve · "
    "cosdefense watch http://127.0.0.1:8765. A server that other computers can reach needs a token in the environment "
    "variable COSDEFENSE_WATCH_TOKEN; so does who reads from it. Browsers ask for it as a password."
)
INTERVAL = 1.0  # seconds between two looks


def watch(
    target: Annotated[str, typer.Argument(metavar="FOLDER|URL", help="A run's folder, or the address of a server.")],
    serve: Annotated[bool, typer.Option("--serve", help="Serve a live page instead of showing it here.")] = False,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --serve: where to listen.")
    ] = "127.0.0.1:8765",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve Prometheus metrics, too, at /metrics; implies --serve.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the present state and stop.")] = False,
) -> None:
    """Watch a run while it is made: accuracy, nodes, rejections, alarms. Never writes to the run's folder.

    Ends when the run is finished, or with Ctrl-C. Works with simulations and with Flower federations
    (`Defended(…, checkpoint_dir=FOLDER)`).
    """
    is_url = target.startswith(("http://", "https://"))
    if (serve or metrics) and (is_url or once):
        raise ConfigError("--serve and --metrics need a folder, and no --once")
    token = os.environ.get("COSDEFENSE_WATCH_TOKEN") or None
    try:
        if serve or metrics:
            _serve(_find_run(Path(target)), address, token, metrics)
            return
        _show(_read_url(target, token) if is_url else _read_folder(_find_run(Path(target))), once)
    except KeyboardInterrupt:  # the usual way to stop watching
        return


def _find_run(folder: Path) -> Path:
    """A folder that holds runs is refused, and they are named. One that holds nothing yet may become a run."""
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; name the folder of a run")
    inside = sorted({path.parent for path in folder.glob("*/records.jsonl")})
    if inside and not (folder / "records.jsonl").exists():
        names = ", ".join(map(str, inside[:5])) + (" …" if len(inside) > 5 else "")
        raise ConfigError(f"{folder} holds {len(inside)} runs; name one of them: {names}")
    return folder


def _serve(folder: Path, address: str, token: str | None, metrics: bool) -> None:
    from ..monitor.server import Address, WatchServer

    try:
        server = WatchServer(folder, Address.parse(address), token, metrics=metrics)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    note = ", any user, the token as password" if token else ""
    console.err.print(f"watching {folder} on http://{Address.parse(address)}{note}; Ctrl-C stops", soft_wrap=True)
    server.run()


def _read_folder(folder: Path) -> Callable[[], Json]:
    from ..monitor.watched_run import WatchedRun

    run = WatchedRun(folder)

    def read() -> Json:
        run.look()
        return run.snapshot()

    return read


def _read_url(url: str, token: str | None) -> Callable[[], Json]:
    from ..monitor.remote import RemoteRun

    try:
        return RemoteRun(url, token).snapshot
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _show(read: Callable[[], Json], once: bool) -> None:
    """Redraw on a terminal; elsewhere print a line per round."""
    from ..monitor.remote import WatchServerError
    from .watch_view import render

    try:
        if once:
            console.out.print(render(read()))
        elif console.out.is_terminal:
            _redraw(read)
        else:
            for line in _describe_news(read):
                console.out.print(line, soft_wrap=True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # only another server can send such a state
        raise WatchServerError(f"the state of the run cannot be shown: {type(error).__name__}") from error


def _redraw(read: Callable[[], Json]) -> None:
    from rich.live import Live

    from .watch_view import render

    state = read()
    with Live(render(state, console.out.height), console=console.out, auto_refresh=False) as live:
        while state["status"] != "finished":
            time.sleep(INTERVAL)
            state = read()
            live.update(render(state, console.out.height), refresh=True)


def _describe_news(read: Callable[[], Json]) -> Iterator[str]:
    from .watch_view import alarm_text, round_line, status

    last_round, last_status, reported = -1, "", set[tuple[Any, ...]]()
    while True:
        state = read()
        if status(state) != last_status:
            last_status = status(state)
            yield last_status
        last_round = min(last_round, state.get("n_rounds", 0) - 1)  # a resumed run may do rounds again
        for row in [row for row in state.get("rounds", []) if row["round"] > last_round]:
            last_round = row["round"]
            yield round_line(row)
        for alarm in state.get("alarms", []):
            key = (alarm["rule"], alarm["node"], alarm["round"])
            if key not in reported:
                reported.add(key)
                yield f"ALARM {alarm_text(alarm)}"
        if state["status"] == "finished":
            return
        time.sleep(INTERVAL)
