"""Records from a column of a file, brought to [-1, 1]."""

import csv
import importlib.resources
import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfjax import _check
from perfjax._check import Numbers

__all__ = ["read_column", "sample_columns", "sample_records", "scaled"]

SAMPLE = "load_profiles_sample.csv"
HIGHEST = 99.0  # percentile at which records are clipped


def read_column(path: str | os.PathLike, column: str) -> np.ndarray:
    """The numbers of one column of a CSV file.

    Args:
        path: the file. Its first line that is neither empty nor begins with # names the columns.
        column: the name of one.

    Returns:
        The numbers, by row.

    Raises:
        ValueError: if there is no such column, a row has no finite number there (row and value are named), or there is
            no row.
        OSError: if the file can't be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error
    return _column(text.splitlines(), str(path), column)


def scaled(values: Numbers) -> np.ndarray:
    """`values` clipped at their 99th percentile and moved to [-1, 1], the least to -1.

    Args:
        values: at least two different numbers.

    Returns:
        The records, in the order of the values. One in a hundred or so is exactly 1.

    Raises:
        ValueError: if there are no two different numbers below the percentile.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section V.

    Example:
        >>> print(scaled([3.0, 5.0, 4.0]).round(3))
        [-1.    1.    0.01]
    """
    numbers = np.asarray(values, float).ravel()
    if numbers.size < 2 or not np.all(np.isfinite(numbers)):
        raise _check.fail("values", "be at least two finite numbers", numbers)
    low, high = numbers.min(), np.percentile(numbers, HIGHEST)
    if not low < high:
        raise _check.fail("values", "differ from each other", numbers)
    return 2 * (np.minimum(numbers, high) - low) / (high - low) - 1


def sample_columns() -> list[str]:
    """The columns of the sample that ships with perfjax: electricity load of households (H0) and businesses (G)."""
    return next(row for row in csv.reader(_content(_sample_lines())) if row)[1:]


def sample_records(column: str = "H0-A") -> np.ndarray:
    """Records of the sample that ships with perfjax, in [-1, 1].

    Args:
        column: one of `sample_columns()`.

    Returns:
        293 records.

    Raises:
        ValueError: if there is no such column.

    Source: SimBench data set, Open Database License 1.0; what was taken from it is said in the file.

    Example:
        >>> sample_records().shape
        (293,)
    """
    return scaled(_column(_sample_lines(), SAMPLE, column))


def _sample_lines() -> list[str]:
    return (importlib.resources.files("perfjax") / "data" / SAMPLE).read_text(encoding="utf-8").splitlines()


def _content(lines: Iterable[str]) -> list[str]:
    """The lines with something in them; others are left in place as empty ones, so that rows can be counted."""
    return ["" if line.startswith("#") else line for line in lines]


def _column(lines: Iterable[str], where: str, column: str) -> np.ndarray:
    rows = csv.reader(_content(lines))
    names = next((row for row in rows if row), [])
    if column not in names:
        raise ValueError(f"{where}: Unknown column `{column}`: known are {', '.join(f'`{name}`' for name in names)}.")
    place = names.index(column)
    values = [_number(row, place, f"{where}: row {rows.line_num}", column) for row in rows if row]
    if not values:
        raise ValueError(f"{where}: Column `{column}` must have a row, but is empty.")
    return np.asarray(values)


def _number(row: list[str], place: int, where: str, column: str) -> float:
    text = row[place] if place < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f'{where}: Column `{column}` must be a finite number, but is "{text}".')
    return value
