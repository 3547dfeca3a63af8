"""Records from a column of a file, brought to [-1, 1]."""

import csv
import importlib.resources
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from perfjax import _check
from perfjax._check import Numbers

__all__ = ["read_column", "read_texts", "sample_columns", "sample_records", "scaled"]

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
    return _column(_lines(path), str(path), column)


def read_texts(path: str | os.PathLike, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """What some columns of a CSV file say, as it is written.

    Args:
        path: the file, as for `read_column`.
        columns: their names.

    Returns:
        One text for each column, by row; empty where a row has none.

    Raises:
        ValueError: if there is no such column, or no row.
        OSError: if the file can't be read.
    """
    return [texts for _, texts in _rows(_lines(path), str(path), columns)]


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


def _lines(path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error


def _rows(lines: Iterable[str], where: str, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """The number of every row's line, and its texts in some columns."""
    rows = csv.reader(_content(lines))
    names = next((row for row in rows if row), [])
    if not names:
        raise ValueError(f"{where}: no line names the columns.")
    for column in columns:
        if column not in names:
            known = ", ".join(f"`{name}`" for name in names)
            raise ValueError(f"{where}: Unknown column `{column}`: known are {known}.")
    places = [names.index(column) for column in columns]
    found = [(rows.line_num, tuple(row[k] if k < len(row) else "" for k in places)) for row in rows if row]
    if not found:
        raise ValueError(f"{where}: Column `{columns[0]}` must have a row, but is empty.")
    return found


def _column(lines: Iterable[str], where: str, column: str) -> np.ndarray:
    found = _rows(lines, where, [column])
    return np.asarray([_number(text, f"{where}: row {line}", column) for line, (text,) in found])


def _number(text: str, where: str, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f'{where}: Column `{column}` must be a finite number, but is "{text}".')
    return value
