"""The commands, assembled. Each imports what is heavy only when it is called, so that `--help` answers at once."""

from __future__ import annotations

import signal
import warnings
from typing import Annotated, Any

import typer

from .. import __version__
from ..catalog.extras import MissingExtra
from ..catalog.options import ConfigError
from . import advise, arena, console, demo, export, repair, report, reproduce, run, train_attack, verify, watch
from . import list as list_command
from .data import data_app
from .helper import helper_app

EPILOG = (
    "Exit codes: 0 done · 1 something failed (data, disk) · 2 a mistake in what was asked · 130 interrupted, resumable."
)

app = typer.Typer(
    help="Keeps poisoned model updates out of federated learning.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=run.EPILOG)(run.run)
app.command(epilog=reproduce.EPILOG)(reproduce.reproduce)
app.command(epilog=arena.EPILOG)(arena.arena)
app.command(epilog=advise.EPILOG)(advise.advise)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=export.EPILOG)(export.export)
app.command(epilog=verify.EPILOG)(verify.verify)
app.command(epilog=repair.EPILOG)(repair.repair)
app.command(epilog=train_attack.EPILOG)(train_attack.train_attack)
app.command(epilog=watch.EPILOG)(watch.watch)
app.command("list", epilog=list_command.EPILOG)(list_command.list_parts)
app.add_typer(data_app, name="data")
app.add_typer(helper_app, name="helper")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        console.out.print(__version__)
        raise typer.Exit


def main() -> None:
    """The entry point: a user's mistake is one line, never a traceback."""
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's time limit is handled like Ctrl-C
    try:
        app()
    except ConfigError as error:
        console.fail(str(error), 2)
    except (MissingExtra, OSError) as error:
        console.fail(str(error), 1)
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        console.fail(str(error), 1)


def _expected() -> tuple[type[Exception], ...]:
    """What may go wrong although nobody made a mistake."""
    from ..data import DataError
    from ..monitor.remote import WatchServerError
    from ..runs.checkpoint import DamagedCheckpoint
    from ..runs.ray.driver import RayUnavailable, RunsFailed
    from ..runs.records import DamagedRecords, NotARun
    from ..runs.run_lock import RunInUse

    return (
        DataError, NotARun, DamagedCheckpoint, DamagedRecords, RunInUse, RunsFailed, RayUnavailable,
        WatchServerError,
    )  # fmt: skip


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    console.note(str(message))
