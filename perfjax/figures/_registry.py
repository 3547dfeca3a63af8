"""All figures by their number in the paper."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure as Picture

from perfjax import _check
from perfjax.figures import best_epsilon, best_noise, groups, leak_and_growth, response_path
from perfjax.figures._figure import Figure

__all__ = ["FIGURES", "Figure", "draw", "numbers", "summary"]

_NUMBERED = response_path.FIGURES | best_epsilon.FIGURES | leak_and_growth.FIGURES | best_noise.FIGURES
FIGURES: Mapping[int | str, Figure] = MappingProxyType(dict(sorted(_NUMBERED.items())) | groups.FIGURES)
"""Figures of "Performative Privacy: When Differential Privacy Maximizes Utility" by their number, others by name."""


def numbers(figure: int | str, *, full: bool = False, progress: bool = False, **size: Any) -> "xarray.Dataset":
    """The numbers of a figure.

    Args:
        figure: its number in "Performative Privacy: When Differential Privacy Maximizes Utility", 1 to 7; or
            "groups-1" to "groups-5", about releases of group counts.
        full: the published settings instead of a reduced grid.
        progress: show a bar on stderr for each sweep.
        size: single settings to change, such as `trials`; `FIGURES[figure].full` lists them.

    Returns:
        `xarray.Dataset`, for `draw` and `summary`; its attributes say what was computed, and how.

    Raises:
        ValueError: if there is no such figure or setting, or one is no count.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Figures 1 to 7, with the settings of
        its authors' public scripts where the paper states none; the others are ours.

    Example:
        >>> from perfjax import figures
        >>> data = figures.numbers(2, cells=3, levels=4, trials=2)
        >>> dict(data.theory.sizes)
        {'leave': 3, 'recruit': 3}
    """
    if figure not in FIGURES:
        raise _check.fail("figure", f"be one of {', '.join(str(number) for number in FIGURES)}", _check.quoted(figure))
    found = FIGURES[figure]
    known = found.full if full else found.reduced
    _check.check_known(size, list(known), "setting")
    for name, value in size.items():
        _check.as_count(value, name, low=2 if name == "levels" else 1)
    start = time.perf_counter()
    data = found.recipe(**(dict(known) | size), progress=progress)
    about = {"figure": figure, "title": found.title, "full": int(full), "seconds": time.perf_counter() - start}
    return data.assign_attrs(about)


def draw(data: "xarray.Dataset") -> Picture:
    """The picture of a figure's `numbers`."""
    return _made_by(data).draw(data)


def summary(data: "xarray.Dataset") -> list[str]:
    """What a figure's `numbers` say, in lines of text."""
    return _made_by(data).summary(data)


def _made_by(data) -> Figure:
    name = data.attrs["figure"]
    return FIGURES[name if isinstance(name, str) else int(name)]
