"""A series from a file of comma-separated values, with everything wrong in it named by its row."""

import calendar
import contextlib
import datetime
import itertools
import math
import os
import re
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

import numpy as np

from perfjax._csv import finite, number, read_table, whole
from perfjax.calibration._series import Series

__all__ = ["by_column", "load_series"]

MISSING = ("", "na", "nan", "null", "none", "-", ".")

# As 202104 and 20210430: numbers, unless all times read so.
MONTH = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])", re.ASCII)
DAY = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", re.ASCII)
# As 2021.04, or 2021.1 of a program that drops zeros: where all times read so, months or parts of a year.
POINT = re.compile(r"(?:19|20)\d\d\.(?:0?[1-9]|1[0-2])", re.ASCII)

Value = TypeVar("Value")


def load_series(
    path: str | os.PathLike,
    *,
    column: str,
    time: str | None = None,
    noise: str | None = None,
    leavers: str | None = None,
    joiners: str | None = None,
    inflow: str | None = None,
) -> Series:
    r"""Read a series from a CSV file. Its first line that is neither empty nor begins with # names the columns.

    An empty field is a missing value, as are NA, NaN, null, none, - and a point.

    Args:
        path: the file.
        column: the column of counts.
        time: the column of times, increasing: numbers, or dates such as 2021-04-30, 20210430, 2021-04, 202104 or
            2021-Q2. Rounds left out, as told by the shortest step, are missing rounds; months and quarters count as
            equally long.
        noise: the column of the noise used.
        leavers: the column of leavers between this round and the next.
        joiners: the column of joiners in that time.
        inflow: the column of those who joined then for reasons of their own.

    Returns:
        `Series`, its rounds labelled by time, or numbered from 0.

    Raises:
        ValueError: for an unknown column, a field that is no number, a count such as 12.000, which may be a thousand
            times as many, times that repeat or go back, by the row of the file, counted from 1 without the header; and
            as `Series` does, whose rows include the rounds left out.
        OSError: if the file can't be read.

    Source: ours.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "counts.csv")
        ...     _ = path.write_text("when,users\n2021-01,100\n2021-03,90\n2021-04,85\n")
        ...     print(load_series(path, column="users", time="when"))
        Series of 4 rounds, 2021-01 to 2021-04, 1 missing
    """
    named = {"population": column, "noise": noise, "leavers": leavers, "joiners": joiners, "inflow": inflow}
    named = {key: name for key, name in named.items() if name is not None}
    table = read_table(path)
    columns = {key: table.values(name, "a number", _noise if key == "noise" else _count) for key, name in named.items()}
    labels = None
    if time is not None:
        labels = table.texts(time)
        times = table.values(time, "a number or a date such as 2021-04", _reader(labels))
        steps = _steps(times, labels, f"{path}: Column `{time}`")
        columns = {key: _spread(values, steps, lambda _: math.nan) for key, values in columns.items()}
        labels = _spread(labels, steps, lambda label: f"after {label}")
    with by_column(path, named):
        return Series(**columns, labels=labels)


@contextlib.contextmanager
def by_column(path: str | os.PathLike, named: Mapping[str, str | None]) -> Generator[None]:
    """Let a `ValueError` about a column of a series say the file, and the name that the column has there."""
    try:
        yield
    except ValueError as error:
        argument = re.match(r"Argument `(\w+)`", str(error))
        column = named.get(argument[1]) if argument else None
        if argument is None or column is None:
            raise
        raise ValueError(f"{path}: Column `{column}`{str(error)[argument.end() :]}") from error


def _count(text: str) -> float:
    return math.nan if text.lower() in MISSING else whole(text)


def _noise(text: str) -> float:
    return math.nan if text.lower() in MISSING else number(text)


def _reader(times: list[str]) -> Callable[[str], float | datetime.date]:
    """What reads each of the times: digits alone are dates only where all of them could be."""
    for form, read in ((MONTH, _month), (DAY, datetime.date.fromisoformat), (POINT, _refused)):
        if all(map(form.fullmatch, times)):
            return read
    return _time


def _time(text: str) -> float | datetime.date:
    quarter = re.fullmatch(r"([0-9]{4})[- ]?Q([1-4])", text, re.IGNORECASE)
    if quarter:
        return datetime.date(int(quarter[1]), 3 * int(quarter[2]) - 2, 1)
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?", text):
        return datetime.date.fromisoformat(text if len(text) == 10 else f"{text}-01")
    return finite(text)


def _month(text: str) -> datetime.date:
    return datetime.date(int(text[:4]), int(text[4:]), 1)


def _refused(text: str) -> datetime.date:
    raise ValueError("a month, or a part of a year?")


def _steps(times: list[float | datetime.date], labels: list[str], what: str) -> list[int]:
    """Rounds from every row to the next, as told by the shortest step; 1 after the last row."""
    apart = np.diff(_measured(times, what))
    for i, step in enumerate(apart):
        if not step > 0:
            wrong = "repeats the time before" if step == 0 else "goes back in time"
            raise ValueError(f'{what} must increase, but "{labels[i + 1]}" in row {i + 2} {wrong}.')
    if not apart.size:
        return [1]
    rounds = np.round(apart / apart.min())
    if not np.allclose(rounds * apart.min(), apart, rtol=0.2) or np.sum(rounds) > 100 * len(times):
        raise ValueError(
            f"{what} must go on in equal steps, but its steps lie between {apart.min():g} and {apart.max():g}."
        )
    return [*map(int, rounds), 1]


def _measured(times: list[float | datetime.date], what: str) -> np.ndarray:
    """Numbers as they are; dates in days, or in months if all lie that far apart: months differ in length."""
    dates = [x for x in times if isinstance(x, datetime.date)]
    if not dates:
        return np.asarray(times, float)
    if len(dates) < len(times):
        raise ValueError(f"{what} must hold numbers or dates, not both.")
    days = np.asarray([x.toordinal() for x in dates], float)
    if np.any(np.diff(days) < 28):
        return days
    of_month = [(x.day - 1) / calendar.monthrange(x.year, x.month)[1] for x in dates]
    return np.asarray([12 * x.year + x.month for x in dates]) + of_month


def _spread(values: list[Value], steps: list[int], skipped: Callable[[Value], Value]) -> list[Value]:
    """The values with one for every round left out, which `skipped` makes from the last one before."""
    rounds = ([value, *[skipped(value)] * (step - 1)] for value, step in zip(values, steps, strict=True))
    return list(itertools.chain.from_iterable(rounds))
