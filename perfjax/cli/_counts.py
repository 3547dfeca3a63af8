"""`perfjax counts`: a release of group counts, what it costs members of groups of each size, and the release itself."""

import csv
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.table import Table

from perfjax._csv import digits, read_table, whole
from perfjax.cli._shared import (
    Dtype,
    Force,
    Json,
    Precision,
    check_output,
    console,
    library,
    print_json,
    print_table,
)

__all__ = ["counts"]

SIZES = "1,10,100,1000"


class MechanismName(StrEnum):
    """How counts are released."""

    log_gaussian = "log-gaussian"
    log_airy = "log-airy"
    spacing = "spacing"


class Order(StrEnum):
    """How the rows of a release follow each other."""

    group = "group"
    given = "given"


def counts(
    tolerance: Annotated[float, typer.Option(help="Mean error allowed, as a share of the count.")] = 0.1,
    sizes: Annotated[str, typer.Option(help="Group sizes to show, with commas.")] = SIZES,
    mechanism: Annotated[MechanismName, typer.Option(help="How counts are released.")] = MechanismName.log_gaussian,
    shift: Annotated[
        float | None, typer.Option(help="Shift c; 1 if not given. Small ones favour large groups.")
    ] = None,
    delta: Annotated[float, typer.Option(help="delta of the central (epsilon, delta) budgets shown.")] = 1e-6,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="File with the true counts, one group a row.")] = None,
    column: Annotated[str | None, typer.Option(help="Column of the counts.")] = None,
    release: Annotated[Path | None, typer.Option(help="File to write, with private counts in that column.")] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns to copy, with commas, first the groups' names. No other is copied.")
    ] = None,
    order: Annotated[
        Order, typer.Option(help="Of the rows: by the groups' names, or as given, which may tell ranks.")
    ] = Order.group,
    as_json: Json = False,
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Design a release of group counts, compare each size's privacy budget with the best possible, and make it."""
    shown = _sizes(sizes)
    _check_files(csv_file, column, release, keep, order, dtype, force=force)
    table = None if csv_file is None or column is None else _read(csv_file, column, keep)
    pj = library(dtype)
    made = pj.count_privacy.design(mechanism.value, tolerance, shift=shift)
    report: dict[str, Any] = {
        "mechanism": mechanism.value,
        "tolerance": tolerance,
        "delta": delta,
        "dtype": dtype.value,
        "parameters": _parameters(made),
        "sizes": [_row(pj, made, tolerance, n, delta) for n in shown],
    }
    if table is not None:
        private = pj.count_privacy.release(made, table.counts)
        with pj.files.replacing(release) as temporary:
            _write(temporary, table, private, order)
        report |= {"groups": len(private), "release": str(release), "order": order.value}
        report |= {"copied": table.copied, "left_out": table.left_out}
    report["guarantee"] = _guarantee(report)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _sizes(text: str) -> list[int]:
    try:
        found = [int(digits(part.strip())) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ValueError(f'Argument `sizes` must be whole numbers of at least 1 with commas, but is "{text}".')
    return found


def _check_files(csv_file, column, release, keep, order, dtype, *, force: bool) -> None:
    """Raise for what would go wrong later, before anything is computed."""
    given = {"--csv": csv_file, "--column": column, "--release": release}
    if any(x is not None for x in given.values()) and any(x is None for x in given.values()):
        raise ValueError("Give --csv, --column and --release together.")
    if csv_file is None:
        if keep is not None or order is not Order.group:
            raise ValueError("--keep and --order go with a release: give --csv, --column and --release.")
        return
    if not (keep or "").strip() and order is Order.group:
        raise ValueError("Name the columns to copy, first the groups' names (--keep), or give --order given.")
    if dtype is not Dtype.float64:
        raise ValueError("A release is made with budgets in float64: leave out --dtype.")
    check_output(release, force=force, inputs=[csv_file])


class _Counts(NamedTuple):
    """What a file says.

    Attributes:
        counts: the true ones.
        column: their name.
        copied: names of the columns to copy.
        left_out: names of the others.
        rows: texts of the copied columns.
    """

    counts: np.ndarray
    column: str
    copied: list[str]
    left_out: list[str]
    rows: list[list[str]]


def _read(path: Path, column: str, keep: str | None) -> _Counts:
    table = read_table(path)
    wanted = "a whole number of at least 0 and below 2^53"
    counts = np.asarray(table.values(column, wanted, _count))
    # As a line of a CSV file, so that a name may hold a comma, in quotation marks.
    names = [] if keep is None else list(dict.fromkeys(name.strip() for name in next(csv.reader([keep]), [])))
    if column in names:
        raise ValueError(f"Argument `keep` must name other columns than that of the counts, but is {keep}.")
    columns = [table.texts(name) for name in names]
    rows = [list(texts) for texts in zip(*columns, strict=True)] if names else [[] for _ in table.rows]
    return _Counts(counts, column, names, [x for x in table.names if x != column and x not in names], rows)


def _count(text: str) -> float:
    value = whole(text)
    if not (0 <= value < 2**53 and value == math.floor(value)):
        raise ValueError
    return value


def _write(path: Path, table: _Counts, private: np.ndarray, order: Order) -> None:
    rows = [[*texts, int(count)] for texts, count in zip(table.rows, private, strict=True)]
    if order is Order.group:
        rows.sort()  # by all copied columns, and then by what is released: nothing else, for it would be private
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([[*table.copied, table.column], *rows])


def _parameters(made) -> dict[str, float]:
    """The mechanism's numbers; a table of gaps by its size."""
    names = [name for name in ("sigma", "shift", "drift") if hasattr(made, name)]
    found = {name: float(getattr(made, name)) for name in names}
    return found | ({"table_size": made.gaps.size} if hasattr(made, "gaps") else {})


def _row(pj, made, tolerance: float, n: int, delta: float) -> dict[str, Any]:
    """What the release means for a group of n."""
    bounds = pj.count_privacy.best_lower_bound(tolerance, n - 1)
    budget, error = float(made.budget(float(n))), float(made.error(float(n)))
    return {
        "size": n,
        "error": error,
        "relative_error": error / n,
        "budget": budget,
        "epsilon": float(pj.count_privacy.epsilon(made, float(n), delta)),
        "least_budget": float(bounds.best),
        "least_budget_by": bounds.winner,
        "ratio": budget / float(bounds.best) if bounds.best > 0 else math.inf,
    }


def _guarantee(report: dict[str, Any]) -> list[str]:
    r = report["tolerance"]
    lines = [
        f"Each count is released with a mean error below {r:g} max(n, 1), n the true count of the group.",
        "One person more or less changes one count by one. For a person in a group of n the release is v(n)-zCDP"
        " (central), at all orders and in both directions; v(n) is shown above, and falls as n grows. Releases add up.",
        "No release with this error can have a budget below the least possible one; whether any attains it is unknown.",
        "The list of groups must be public: it shows as it is, so it must hold every group that could be there, and"
        " those that nobody is in with a count of 0.",
        "v(n) depends on the true n: do not publish budgets by true size, nor tell a person theirs.",
    ]
    if report["mechanism"] == "log-airy":
        lines.append("The budget of log-Airy noise rests on a derivation that is reviewed, not published.")
    return lines + (_about_release(report) if "release" in report else [])


def _about_release(report: dict[str, Any]) -> list[str]:
    lines = [
        "Whole numbers were drawn exactly from the probabilities that v(n) bounds, with the operating system's"
        " randomness, which nobody can repeat."
    ]
    if report["copied"]:
        lines.append(f"Copied as they are, and so to be public: {', '.join(report['copied'])}.")
    if report["left_out"]:
        names = ", ".join(report["left_out"])
        lines.append(f"Left out, for a column that follows from the counts gives them away: {names}.")
    if report["order"] == Order.group:
        lines.append(f"Rows are in the order of {report['copied'][0]}, on which the counts have no influence.")
    else:
        lines.append("Rows are in the order given: if that follows from the counts, it gives their ranks away.")
    return lines


def _print_report(report: dict[str, Any]) -> None:
    parameters = ", ".join(f"{name} {value:.6g}" for name, value in report["parameters"].items())
    title = f"{report['mechanism']}: {parameters}; tolerance {report['tolerance']:g}"
    table = Table(title=title, title_justify="left")
    headings = ("size n", "mean\nerror", "central\nv(n)\n(zCDP)")
    for heading in (
        *headings,
        f"central\nepsilon at\ndelta {report['delta']:g}",
        "least v(n)\npossible",
        "by",
        "ratio",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report["sizes"]:
        numbers = (row[name] for name in ("error", "budget", "epsilon", "least_budget"))
        table.add_row(str(row["size"]), *(f"{x:.4g}" for x in numbers), row["least_budget_by"], f"{row['ratio']:.3g}")
    print_table(table)
    screen = console()
    if "release" in report:
        screen.print(f"Released {report['groups']} counts to {report['release']}.")
    for line in report["guarantee"]:
        screen.print(line)
