"""The command line: parse, call one public function, print or save. Bad input is one line on stderr and exit code 2."""

import os
import sys

import typer

from perfjax.cli._counts import counts
from perfjax.cli._figure import figure
from perfjax.cli._fit import fit
from perfjax.cli._once import Command
from perfjax.cli._reconstruct import reconstruct
from perfjax.cli._scenario import new, show
from perfjax.cli._schedule import schedule
from perfjax.cli._shared import INTERRUPTED, in_shell_words, interruptible
from perfjax.cli._simulate import simulate
from perfjax.cli._sweep import sweep
from perfjax.cli._tune import tune

__all__ = ["app", "command", "main"]

UsageError = typer.BadParameter.__base__  # the only way to it that is public in every version of typer

app = typer.Typer(
    help="How much noise should a repeated release add, when leaking someone's data makes them leave?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for run in (tune, schedule, simulate, sweep, figure, counts, reconstruct, fit):
    app.command(cls=Command)(interruptible()(run))

scenario_app = typer.Typer(help="Show or start a scenario file.", no_args_is_help=True)
for run in (show, new):
    scenario_app.command(cls=Command)(run)
app.add_typer(scenario_app, name="scenario")


def command() -> None:
    """Entry point of the command `perfjax`: `main`, which ends at once where it was interrupted.

    XLA may be compiling then, in threads that outlive the interpreter and crash as it is taken apart.
    """
    try:
        main()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def main() -> None:
    """Parse, run, and exit: 0, 2 for bad input, 130 if interrupted."""
    try:
        # Not standalone: that answers wrong usage with a box of several lines.
        sys.exit(app(standalone_mode=False))
    except (UsageError, ValueError, OSError, MemoryError) as error:
        message = error.format_message() if isinstance(error, UsageError) else str(error)
        if message:  # no command at all: the help is printed, and is all there is to say
            print(f"perfjax: {in_shell_words(message)}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:
        # JAX has no MemoryError, and its class is not imported here: the help must not wait for JAX.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"perfjax: out of memory: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
