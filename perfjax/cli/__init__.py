"""The command line: parse, call one public function, print or save. Bad input is one line on stderr and exit code 2."""

import sys

import typer

from perfjax.cli._figure import figure
from perfjax.cli._scenario import new, show
from perfjax.cli._shared import interruptible
from perfjax.cli._simulate import simulate
from perfjax.cli._sweep import sweep
from perfjax.cli._tune import tune

__all__ = ["app", "main"]

app = typer.Typer(
    help="How much noise should a repeated release add, when leaking someone's data makes them leave?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(interruptible()(tune))
app.command()(interruptible()(simulate))
app.command()(interruptible()(sweep))
app.command()(interruptible()(figure))

scenario_app = typer.Typer(help="Show or start a scenario file.", no_args_is_help=True)
scenario_app.command()(show)
scenario_app.command()(new)
app.add_typer(scenario_app, name="scenario")


def main() -> None:
    """Entry point of the command `perfjax`."""
    try:
        app()
    except (ValueError, OSError, MemoryError) as error:
        print(f"perfjax: {error}", file=sys.stderr)
        sys.exit(2)
