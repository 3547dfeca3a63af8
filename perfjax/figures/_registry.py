"""All figures by their name: a number for the first paper, recon-1 to recon-5 for that on reconstruction."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure as Picture

from perfjax import _check
from perfjax._check import Numbers
from perfjax.figures import (
    best_epsilon,
    best_noise,
    estimator_error,
    groups,
    in_out_risk,
    leak_and_growth,
    moment_bounds,
    response_path,
    threshold_bounds,
)
from perfjax.figures._figure import Figure
from perfjax.reconstruction.records import sample_records

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "Figure", "draw", "numbers", "summary"]

PERFORMATIVE = response_path.FIGURES | best_epsilon.FIGURES | leak_and_growth.FIGURES | best_noise.FIGURES
RECONSTRUCTION = in_out_risk.FIGURES | moment_bounds.FIGURES | threshold_bounds.FIGURES | estimator_error.FIGURES

FIGURES: Mapping[int | str, Figure] = MappingProxyType(
    dict(sorted(PERFORMATIVE.items())) | RECONSTRUCTION | groups.FIGURES
)
"""1 to 7: "Performative Privacy: When Differential Privacy Maximizes Utility"; recon-1 to recon-5: "Reconstruction
Limits for Repeated Differentially Private Aggregates"; groups-1 to groups-5: about releases of group counts."""


def numbers(
    figure: int | str, *, full: bool = False, progress: bool = False, records: Numbers | None = None, **size: Any
) -> "xarray.Dataset":
    """The numbers of a figure.

    Args:
        figure: its number in "Performative Privacy: When Differential Privacy Maximizes Utility", 1 to 7; or "recon-1"
            to "recon-5", those of "Reconstruction Limits for Repeated Differentially Private Aggregates"; or "groups-1"
            to "groups-5", about releases of group counts.
        full: the published settings instead of a reduced grid.
        progress: show a bar on stderr for each sweep.
        records: in [-1, 1], for "recon-2" and "recon-3"; by default those of `reconstruction.records.sample_records`.
        size: single settings to change, such as `trials`; `FIGURES[figure].full` lists them.

    Returns:
        `xarray.Dataset`, for `draw` and `summary`; its attributes say what was computed, and how.

    Raises:
        ValueError: if there is no such figure or setting, a setting is no count, or records are given to a figure that
            takes none or lie outside of [-1, 1].

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Figures 1 to 7, with the settings of
        its authors' public scripts where the paper states none. "Reconstruction Limits for Repeated Differentially
        Private Aggregates", Figures 1 to 5, with the missing settings reconstructed: its load profiles are not public,
        and neither are the triples and the grid of its Figure 4. The figures of groups are ours.

    Example:
        >>> from perfjax import figures
        >>> data = figures.numbers(2, cells=3, levels=4, trials=2)
        >>> dict(data.theory.sizes)
        {'leave': 3, 'recruit': 3}
    """
    if figure not in FIGURES:
        raise _check.fail("figure", f"be one of {', '.join(str(name) for name in FIGURES)}", _check.quoted(figure))
    found = FIGURES[figure]
    known = found.full if full else found.reduced
    _check.check_known(size, list(known), "setting")
    for name, value in size.items():
        _check.as_count(value, name, low=2 if name in ("levels", "most") else 1)
    about = {"figure": figure, "title": found.title, "full": int(full)}
    start = time.perf_counter()
    data = found.recipe(**(dict(known) | size), **_records(figure, records), progress=progress)
    return data.assign_attrs(about | {"seconds": time.perf_counter() - start})


def _records(figure: int | str, records: Numbers | None) -> dict[str, Any]:
    """The records of a figure that takes some."""
    if not FIGURES[figure].takes_records:
        if records is not None:
            raise ValueError(f"Argument `records` goes with a figure that takes some, which {figure} does not.")
        return {}
    if records is None:
        return {"records": sample_records()}
    return {"records": np.asarray(_check.in_range(_check.as_float(records, "records"), "records", -1, 1))}


def draw(data: "xarray.Dataset") -> Picture:
    """The picture of a figure's `numbers`."""
    return FIGURES[_name(data)].draw(data)


def summary(data: "xarray.Dataset") -> list[str]:
    """What a figure's `numbers` say, in lines of text."""
    return FIGURES[_name(data)].summary(data)


def _name(data) -> int | str:
    name = data.attrs["figure"]
    return name if isinstance(name, str) else int(name)
