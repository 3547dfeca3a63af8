"""What several commands share: options, the library in the precision asked for, and where results are written."""

import contextlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

__all__ = [
    "DEFAULT_PRESET",
    "INTERRUPTED",
    "NARROWEST",
    "Dtype",
    "Force",
    "Json",
    "Leave",
    "LeaveSpared",
    "Precision",
    "PresetName",
    "Recruit",
    "RecruitLeaked",
    "ScenarioFile",
    "Threshold",
    "accuracy",
    "answer",
    "check_output",
    "check_outputs",
    "check_picture",
    "check_seed",
    "chosen_scenario",
    "console",
    "discard_output",
    "fitted_note",
    "fitted_ranges",
    "in_shell_words",
    "library",
    "plots",
    "print_json",
    "print_table",
    "records_of",
    "save_netcdf",
    "scope_warning",
    "to_the_end",
    "without_display",
]

DEFAULT_PRESET = "mean-estimation"
INTERRUPTED = 130  # exit code after Ctrl-C


class Dtype(StrEnum):
    """Floating-point precision of a run."""

    float32 = "float32"
    float64 = "float64"


ScenarioFile = Annotated[Path | None, typer.Argument(help="Scenario file (TOML).", show_default=False)]
PresetName = Annotated[str | None, typer.Option("--preset", help="A scenario that ships with perfjax.")]
Leave = Annotated[float | None, typer.Option(help="Probability q that a leaked user leaves.")]
Recruit = Annotated[float | None, typer.Option(help="Probability r that a user recruits another.")]
LeaveSpared = Annotated[float | None, typer.Option(help="Probability that a spared user leaves: attrition anyway.")]
RecruitLeaked = Annotated[float | None, typer.Option(help="Probability that a leaked user recruits another.")]
Threshold = Annotated[float | None, typer.Option(help="Log-likelihood ratio above which a user is leaked.")]
Precision = Annotated[Dtype, typer.Option("--dtype", help="Floating-point precision.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def library(dtype: Dtype):
    """perfjax, imported only when a command runs, in the precision asked for."""
    import jax

    jax.config.update("jax_enable_x64", dtype is Dtype.float64)
    import perfjax

    return perfjax


def chosen_scenario(pj, path: Path | None, preset: str | None, **leaves: float | None):
    """The scenario of a file or a preset, with the leaves that were given."""
    if path is not None and preset is not None:
        raise ValueError("Give a scenario file or --preset, not both.")
    scenario = pj.load_scenario(path) if path is not None else pj.preset(DEFAULT_PRESET if preset is None else preset)
    given = {name: value for name, value in leaves.items() if value is not None}
    return scenario.replace(**given) if given else scenario


def fitted_ranges(path: Path | None):
    """What the fit in a scenario file left open, or None where there is none."""
    from perfjax import calibration

    return None if path is None else calibration.load_ranges(path)


def fitted_note(ranges, scenario, swept: Iterable[str] = ()) -> str | None:
    """What to say where only the estimates of a fit are used, and some of them are not known."""
    if ranges is None:
        return None
    leaves = scenario.leaves()
    unknown = [name for name in ranges.unknown if name not in swept]
    kept = [name for name in unknown if math.isclose(float(leaves[name]), ranges.estimate[name], rel_tol=1e-6)]
    if not kept:
        return None
    doubts = f"{ranges.leaks.words} " if ranges.leaks.doubted else ""
    return (
        f"{doubts}Not known from the counts that the scenario was fitted to: {', '.join(kept)}. Most probable values"
        " are used."
    )


def records_of(path: Path | None, column: str | None):
    """Records in [-1, 1] from a column of a CSV file, or None if no file is given."""
    if path is None and column is None:
        return None
    if path is None or column is None:
        raise ValueError("Give --data and --column together.")
    from perfjax.reconstruction import records

    return records.scaled(records.read_column(path, column))


def check_output(path: Path | None, *, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Raise before a long run what would make saving its result fail after it, or cost one of the files read."""
    if path is None:
        return
    from perfjax import files

    files.check_replaceable(path)
    for one in inputs:
        if one is not None and _same_file(path, one):
            raise ValueError(f"{path}: a result must not replace what is read, {one}.")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}.")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{path}: no permission to write to the folder {path.parent}.")
    if path.exists() and not force:
        raise ValueError(f"{path} exists; give --force to overwrite it.")


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by whatever links."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def check_picture(path: Path | None, *, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """`check_output` for a picture, whose name says its format."""
    check_output(path, force=force, inputs=inputs)
    if path is None:
        return
    import matplotlib
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ValueError(f"{path}: the name of a picture ends in one of {', '.join('.' + kind for kind in known)}.")
    tex = matplotlib.rcParams["pgf.texsystem"]
    if path.suffix.lower() == ".pgf" and shutil.which(tex) is None:
        raise ValueError(f"{path}: a .pgf picture needs TeX, but there is no program {tex}.")


def check_seed(seed: int) -> int:
    """`seed`, if it is one that random keys are made of."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"Argument `seed` must lie in [0, 2^31), but is {seed}.")
    return seed


def check_outputs(
    save: Path | None, plot: Path | None, *, force: bool, option: str = "--save", inputs: Iterable[Path | None] = ()
) -> None:
    """`check_output` for a result, saved by an option, and a picture of it."""
    check_output(save, force=force, inputs=inputs)
    check_picture(plot, force=force, inputs=inputs)
    if save is not None and plot is not None and _same_file(save, plot):
        raise ValueError(f"{save}: {option} and --plot must be two files.")


def answer(
    pj, outputs: Iterable[tuple[str, Path | None, Callable[[Path], None]]], show: Callable[[], None], *, quiet: bool
) -> None:
    """Write each output that has a path, whole or not at all, and then `show` the answer, and say what was written.

    In this order, so that a reader who leaves early (`| head`) costs no output; and a disk that is full does not cost
    the answer.
    """
    saved, failure = [], None
    try:
        for what, path, write in ((what, path, write) for what, path, write in outputs if path is not None):
            with pj.files.replacing(path) as temporary:
                write(temporary)
            saved.append(f"{what} saved to {path}.")
    except OSError as error:
        failure = error
    show()
    for line in [] if quiet else saved:
        print(line)
    if failure is not None:
        raise failure


def print_json(report: Any) -> None:
    """Print a report as JSON, which has no word for infinity and for no number: they are null."""
    print(json.dumps(_strict(report), indent=2, allow_nan=False))


def _strict(report: Any) -> Any:
    if isinstance(report, dict):
        return {name: _strict(value) for name, value in report.items()}
    if isinstance(report, list | tuple):
        return [_strict(value) for value in report]
    return None if isinstance(report, float) and not math.isfinite(report) else report


def save_netcdf(data, path: Path) -> None:
    """Write a dataset as netCDF."""
    # SciPy's writer is always there, xarray's other ones are not.
    data.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")


def without_display() -> None:
    """Let matplotlib draw into files only."""
    import matplotlib

    matplotlib.use("Agg")


def plots():
    """`perfjax.plots`, imported only when a picture is wanted, and without a display."""
    without_display()
    import perfjax.plots

    return perfjax.plots


NARROWEST = 20  # columns: below, nothing can be read; COLUMNS=0 and no terminal at all say so


class _Screen(Console):
    """A console that leaves a closed pipe to its caller, where rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        raise


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: brackets or colons in a path or a name are neither styles nor emoji."""
    screen = _Screen(stderr=stderr, markup=False, emoji=False, highlight=False)
    screen.width = max(screen.width, NARROWEST)
    return screen


def print_table(table: Table) -> None:
    """Print a table as wide as its numbers are: in a narrow terminal a number without its last digits is another."""
    for column in (column for column in table.columns if column.justify == "right"):
        lines = (line for text in (column.header, *column.cells) for line in str(text).splitlines())
        column.no_wrap, column.min_width = True, max(map(cell_len, lines), default=0)
    screen = console()
    unbounded = screen.options.update(max_width=10_000)
    screen.width = max(screen.width, screen.measure(table, options=unbounded).minimum)
    screen.print(table)


def in_shell_words(text: str) -> str:
    """A message of the library on one line, with the command in place of the Python function that it names."""
    return " ".join(text.split()).replace("`simulate_users`", "`perfjax simulate --solver users`")


def accuracy(relative_error: float) -> str:
    """How exact the law is, in words."""
    if not relative_error:
        return "every number of users is a node"
    return f"estimated relative numerical error {relative_error:.1g}"


FAR_APART = 30  # times the central budget: beyond, whoever asks for a local one is asked back


def scope_warning(unit: str, local: float, central: float, what: str, hint: str = "") -> str | None:
    """A question back to who is bound to a local budget, where the central budget of the same releases is far below.

    Args:
        unit: "epsilon" or "rho".
        local: the budget asked for.
        central: of what is published, in the same unit.
        what: whose budget it is.
        hint: what to ask for instead.
    """
    if local <= FAR_APART * central:
        return None
    return (
        f"Your {unit} {local:.6g} is local: it protects each user's own noisy record. The central {unit} of {what} is"
        f" {central:.2g}: if you meant that, {hint or 'far less noise is enough'}."
    )


@contextlib.contextmanager
def to_the_end() -> Generator[None]:
    """Turn Ctrl-C into one line on stderr, the text of the `KeyboardInterrupt` if it has one, and exit code 130.

    A reader of the output who left early is no error: what is written to files is written before.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        print(f"perfjax: {str(stop) or 'stopped'}.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        discard_output()
        raise typer.Exit(0) from None


def discard_output() -> None:
    """Let what is still to be written to a closed pipe, and by the interpreter as it ends, go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # an output that is no file has nothing left to write
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
