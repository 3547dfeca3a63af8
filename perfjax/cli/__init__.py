"""The command line: parse, call one public function, print or save. Bad input is one line on stderr and exit code 2."""

import os
import sys
from typing import Protocol, runtime_checkable

import typer

from perfjax.cli._counts import counts
from perfjax.cli._figure import figure
from perfjax.cli._fit import fit
from perfjax.cli._once import Command
from perfjax.cli._reconstruct import reconstruct
from perfjax.cli._scenario import new, show
from perfjax.cli._schedule import schedule
from perfjax.cli._shared import INTERRUPTED, NARROWEST, discard_output, in_shell_words, to_the_end
from perfjax.cli._simulate import simulate
from perfjax.cli._sweep import sweep
from perfjax.cli._tune import tune

__all__ = ["app", "command", "main"]

app = typer.Typer(
    help="How much noise should a repeated release add, when leaking someone's data makes them leave?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for run in (tune, schedule, simulate, sweep, figure, counts, reconstruct, fit):
    app.command(cls=Command)(to_the_end()(run))

scenario_app = typer.Typer(help="Show or start a scenario file.", no_args_is_help=True)
for run in (show, new):
    scenario_app.command(cls=Command)(to_the_end()(run))
app.add_typer(scenario_app, name="scenario")


def command() -> None:
    """Entry point of the command `perfjax`: `main`, which ends at once where it was interrupted.

    XLA may be compiling then, in threads that outlive the interpreter and crash as it is taken apart.
    """
    try:
        main()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def main() -> None:
    """Parse, run, and exit: 0, 2 for bad input, 130 if interrupted.

    A reader of the output who left early is no error: all that is written to files is written before.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < NARROWEST:  # what prints tables and help would print nothing
        del os.environ["COLUMNS"]
    try:
        # Not standalone: that answers wrong usage with a box of several lines.
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except (KeyboardInterrupt, typer.Abort):
        print("perfjax: stopped.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        discard_output()
        sys.exit(0)
    except Exception as error:
        message = _in_one_line(error)
        if message is None:
            raise
        if message:
            print(f"perfjax: {message}", file=sys.stderr)
        sys.exit(2)


@runtime_checkable
class _UsageError(Protocol):
    """What typer raises for wrong usage: its class is in no place that is public in every version of typer."""

    def format_message(self) -> str: ...


def _in_one_line(error: Exception) -> str | None:
    """What to say of an error: nothing where the help is printed already, None for one that is a fault of ours."""
    if isinstance(error, _UsageError):
        return in_shell_words(error.format_message())
    if isinstance(error, MemoryError):
        return f"out of memory{': ' if str(error) else ''}{in_shell_words(str(error))}"
    if isinstance(error, ValueError | OSError):
        return in_shell_words(str(error)) or type(error).__name__
    # JAX has no class of its own for either.
    text = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in text:
        return f"out of memory: {text}"
    return text if isinstance(error, RuntimeError) and "initialize backend" in text else None
