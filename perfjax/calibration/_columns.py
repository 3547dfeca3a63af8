"""A series from a file of comma-separated values, with everything wrong in it named by its row."""

import datetime
import itertools
import math
import os
import re

import numpy as np

from perfjax.calibration._series import Series
from perfjax.reconstruction.records import read_texts

__all__ = ["load_series"]

MISSING = ("", "na", "nan", "null", "none", "-", ".")


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
    """Read a series from a CSV file with a header.

    Args:
        path: the file.
        column: the column of counts; an empty field is a missing round.
        time: the column of times: numbers, or dates as 2021-04 or 2021-04-30, increasing. Rounds left out, as told by
            the shortest step, are missing rounds.
        noise: the column of the noise used.
        leavers: the column of leavers between this round and the next.
        joiners: the column of joiners in that time.
        inflow: the column of those who joined then for reasons of their own.

    Returns:
        `Series`, its rounds labelled by time, or by row.

    Raises:
        ValueError: for an unknown column, a field that is no number, times that repeat or go back, and whatever is
            wrong with the counts; the row is named, counted from 1 without the header.
        OSError: if the file can't be read.
    """
    wanted = {"population": column, "noise": noise, "leavers": leavers, "joiners": joiners, "inflow": inflow}
    wanted = {name: what for name, what in wanted.items() if what is not None}
    rows = read_texts(path, [*wanted.values(), *([] if time is None else [time])])
    texts = dict(zip(wanted, zip(*rows, strict=True), strict=False))  # that of times comes last
    columns = {name: [_number(text, wanted[name], i) for i, text in enumerate(texts[name])] for name in wanted}
    labels = [str(i) if time is None else row[-1].strip() for i, row in enumerate(rows)]
    if time is not None and len(rows) > 1:
        places = _places(labels, time)
        columns = {name: _spread(values, places) for name, values in columns.items()}
        labels = [
            labels[places.index(i)] if i in places else f"after {labels[_last(places, i)]}"
            for i in range(places[-1] + 1)
        ]
    population = columns.pop("population")
    return Series(population, labels=labels, **columns)


def _number(text, column, index):
    text = text.strip()
    if text.lower() in MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'Column `{column}` must hold numbers, but has "{text}" in row {index + 1}.') from None


def _places(labels, column) -> list[int]:
    """The round of every row: its time, in units of the shortest step."""
    times = [_time(label, column, i) for i, label in enumerate(labels)]
    for i, (before, now) in enumerate(itertools.pairwise(times)):
        if now <= before:
            what = "repeats the time before" if now == before else "goes back in time"
            raise ValueError(f'Column `{column}` must increase, but "{labels[i + 1]}" in row {i + 2} {what}.')
    steps = np.diff(times)
    places = np.concatenate([[0], np.cumsum(np.round(steps / steps.min()))]).astype(int)
    exact = np.allclose(np.diff(places) * steps.min(), steps, rtol=0.2)
    if not exact or places[-1] > 100 * len(places):
        raise ValueError(
            f"Column `{column}` must go on in equal steps, but its steps lie between "
            f"{steps.min():g} and {steps.max():g}."
        )
    return [int(x) for x in places]


def _time(label, column, index) -> float:
    try:
        return float(label)
    except ValueError:
        pass
    quarter = re.fullmatch(r"(\d{4})[- ]?Q([1-4])", label, re.IGNORECASE)
    if quarter:
        return float(quarter[1]) * 12 + 3 * (float(quarter[2]) - 1)
    try:
        day = datetime.date.fromisoformat(label if re.fullmatch(r".*-.*-.*", label) else f"{label}-01")
    except ValueError:
        raise ValueError(
            f'Column `{column}` must hold numbers or dates such as 2021-04, but has "{label}" in row {index + 1}.'
        ) from None
    return day.toordinal() / 30.4375


def _spread(values, places):
    """With a missing value for every round left out."""
    full = [math.nan] * (places[-1] + 1)
    for place, value in zip(places, values, strict=True):
        full[place] = value
    return full


def _last(places, index):
    return max(i for i, place in enumerate(places) if place < index)
