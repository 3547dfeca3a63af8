"""Columns of CSV files, with everything wrong in them named by its row."""

import csv
import importlib.resources
import math
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["CsvTable", "digits", "finite", "number", "read_table", "shipped", "whole"]

# As float reads numbers, but without its underscores and its digits of other scripts.
NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE)
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}", re.ASCII)  # 12.000 is twelve here and twelve thousand there

Value = TypeVar("Value")


class CsvTable(NamedTuple):
    """What a CSV file holds, as it is written.

    Attributes:
        path: the file.
        names: of its columns, without spaces around them.
        rows: the texts of every row, one for each column.
    """

    path: str
    names: list[str]
    rows: list[list[str]]

    def place(self, column: str) -> int:
        """The index of a column; a `ValueError` if none, or more than one, has its name."""
        if self.names.count(column) == 1:
            return self.names.index(column)
        what = "Ambiguous" if column in self.names else "Unknown"
        known = ", ".join(f"`{name}`" for name in self.names)
        raise ValueError(f"{self.path}: {what} column `{column}`: known are {known}.")

    def texts(self, column: str) -> list[str]:
        """What a column says, without spaces around it; empty where a row has nothing there."""
        place = self.place(column)
        return [row[place].strip() for row in self.rows]

    def values(self, column: str, wanted: str, read: Callable[[str], Value]) -> list[Value]:
        """`read` of each text of a column; a `ValueError` from it comes to say where, and what is `wanted`."""
        found = []
        for row, text in enumerate(self.texts(column), 1):
            try:
                found.append(read(text))
            except ValueError as error:
                where, why = f"{self.path}: row {row}", f" ({error})" if str(error) else ""
                raise ValueError(f'{where}: Column `{column}` must be {wanted}, but is "{text}"{why}.') from None
        return found


def read_table(path: str | os.PathLike) -> CsvTable:
    """Read a CSV file. Its first line that is neither empty nor begins with # names the columns.

    Below it an empty line is a row with nothing in it where there is one column, unless no other follows, and no row
    where there are more.

    Raises:
        ValueError: if it is no CSV file, has no header or no row, or a row has more or fewer values than the header.
        OSError: if it can't be read.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file: {error}") from error
    while rows and (not rows[0] or rows[0][0].startswith("#")):
        del rows[0]
    if not rows:
        raise ValueError(f"{path}: no line names the columns.")
    while not rows[-1]:
        del rows[-1]
    names, *rows = rows
    names = [name.strip() for name in names]
    _check_separator(path, names)
    rows = [row or [""] for row in rows if row or len(names) == 1]
    if not rows:
        raise ValueError(f"{path}: there are no rows below the header.")
    for row, texts in enumerate(rows, 1):
        if len(texts) != len(names):
            hint = "; a value with a comma in it needs quotation marks" if len(texts) > len(names) else ""
            raise ValueError(f"{path}: row {row}: {len(texts)} values, but {len(names)} columns{hint}.")
    return CsvTable(str(path), names, rows)


def _check_separator(path: str | os.PathLike, names: list[str]) -> None:
    """Raise a `ValueError` where a header is one name with what other programs separate columns by."""
    found = [what for mark, what in ((";", "semicolons"), ("\t", "tabs")) if len(names) == 1 and mark in names[0]]
    if found:
        raise ValueError(f"{path}: columns are separated by {found[0]}, but must be by commas.")


def shipped(name: str) -> AbstractContextManager[Path]:
    """A file of data that ships with perfjax, there while it is open."""
    return importlib.resources.as_file(importlib.resources.files("perfjax") / "data" / name)


def number(text: str) -> float:
    """`text` as a number, infinite ones and NaN among them; a `ValueError` if it is none."""
    if not NUMBER.fullmatch(text):
        raise ValueError
    return float(text)


def digits(text: str) -> str:
    """`text` if it is a whole number in digits; a `ValueError` if not."""
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        raise ValueError
    return text


def finite(text: str) -> float:
    """`text` as a number; a `ValueError` if it is none, or not finite."""
    found = number(text)
    if not math.isfinite(found):
        raise ValueError
    return found


def whole(text: str) -> float:
    """`text` as a number that is counted; a `ValueError` also where a point may separate thousands."""
    if THOUSANDS.fullmatch(text):
        raise ValueError(f"{text.replace('.', '')}, or {text.partition('.')[0]}?")
    return number(text)
