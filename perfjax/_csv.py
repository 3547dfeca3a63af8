"""Columns of CSV files, with everything wrong in them named by its row."""

import csv
import importlib.resources
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["CsvTable", "finite", "read_table", "shipped"]

Value = TypeVar("Value")


class CsvTable(NamedTuple):
    """What a CSV file holds, as it is written.

    Attributes:
        path: the file.
        names: of its columns.
        rows: the texts of every row.
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
        return [row[place].strip() if place < len(row) else "" for row in self.rows]

    def values(self, column: str, wanted: str, read: Callable[[str], Value]) -> list[Value]:
        """`read` of each text of a column; a `ValueError` from it comes to say where, and what is `wanted`."""
        found = []
        for row, text in enumerate(self.texts(column), 1):
            try:
                found.append(read(text))
            except ValueError:
                where = f"{self.path}: row {row}"
                raise ValueError(f'{where}: Column `{column}` must be {wanted}, but is "{text}".') from None
        return found


def read_table(path: str | os.PathLike) -> CsvTable:
    """Read a CSV file. Its first line that is neither empty nor begins with # names the columns.

    Below it an empty line is a row with nothing in it where there is one column, unless no other follows, and no row
    where there are more.

    Raises:
        ValueError: if it is no CSV file, or has no header or no row.
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
    rows = [row or [""] for row in rows if row or len(names) == 1]
    if not rows:
        raise ValueError(f"{path}: there are no rows below the header.")
    return CsvTable(str(path), names, rows)


def shipped(name: str) -> AbstractContextManager[Path]:
    """A file of data that ships with perfjax, there while it is open."""
    return importlib.resources.as_file(importlib.resources.files("perfjax") / "data" / name)


def finite(text: str) -> float:
    """`text` as a number; a `ValueError` if it is none, or not finite."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
