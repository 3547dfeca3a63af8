"""What a figure is."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Figure"]


class Figure(NamedTuple):
    """A figure.

    Attributes:
        title: what it shows, in one line.
        recipe: the numbers, recipe(progress=..., **size) -> `xarray.Dataset`.
        draw: the picture of such a dataset, a matplotlib figure.
        summary: what such a dataset says, in lines.
        reduced: the recipe's arguments for a look in less than a minute.
        full: the recipe's arguments for the published settings.
        takes_records: whether the recipe has an argument `records`, numbers in [-1, 1].
    """

    title: str
    recipe: Callable
    draw: Callable
    summary: Callable
    reduced: Mapping[str, Any]
    full: Mapping[str, Any]
    takes_records: bool = False
