"""The cells of a sweep: named axes, checked, and the numbers of every cell."""

import itertools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perfjax import _check
from perfjax._check import Numbers
from perfjax._fields import Field
from perfjax.scenario import Scenario

__all__ = ["MOST_CELLS", "Grid", "as_grid", "checked_template"]

MOST_CELLS = 2**32  # a cell's number is folded into a key as 32 bits


class Grid(NamedTuple):
    """Named axes of numbers, and whether a cell is a combination of them ("product") or their common row ("zip").

    Attributes:
        meaning: symbol and unit of numbers, by name.
    """

    axes: dict[str, np.ndarray]
    pairing: str
    meaning: Mapping[str, tuple[str, str]] = MappingProxyType({})

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(self.axes) if self.pairing == "product" else ("cell",)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.axes.values())[: len(self.dims)]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def values(self, cells: np.ndarray) -> dict[str, np.ndarray]:
        """The numbers of some cells, which are numbered along the last axis first."""
        places = np.unravel_index(cells, self.shape)
        places = places if self.pairing == "product" else places * len(self.axes)
        return {name: axis[place] for (name, axis), place in zip(self.axes.items(), places, strict=True)}

    def coordinates(self) -> dict[str, Field]:
        """The axes as coordinates with symbols and units."""
        dims = self.dims if self.pairing == "product" else self.dims * len(self.axes)
        return {
            name: Field(values, (dim,), dict(zip(("symbol", "units"), self.meaning.get(name, ()), strict=False)))
            for (name, values), dim in zip(self.axes.items(), dims, strict=True)
        }


def as_grid(scenario: Scenario, over: Mapping[str, Numbers], pairing: str) -> Grid:
    """The grid of the axes `over`, in the dtype of `scenario`."""
    _check.as_choice(pairing, "pairing", ("product", "zip"))
    if not isinstance(over, Mapping) or not over:
        raise _check.fail("over", "map names of leaves to numbers", over)
    leaves = scenario.leaves()
    _check.check_known(over, list(leaves), "axis")
    for name in over:
        if isinstance(leaves[name], int | str):
            raise ValueError(f"Axis `{name}` is not a number to compute with: make one sweep for each of its values.")
    grid = Grid({name: _axis(name, values, scenario) for name, values in over.items()}, pairing, scenario.meaning())
    lengths = {name: len(values) for name, values in grid.axes.items()}
    if pairing == "zip" and len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{name}` has {length}" for name, length in lengths.items())
        raise ValueError(f"Axes under zip must be of one length, but {listed}.")
    if grid.size > MOST_CELLS:
        raise ValueError(f"A sweep must have at most 2^32 cells, but has {grid.size}.")
    return grid


def _axis(name: str, values: Numbers, scenario: Scenario) -> np.ndarray:
    try:
        axis = np.asarray(values)
        if axis.dtype.kind in "bSU" and axis.size:
            raise TypeError
        axis = axis.astype(scenario.population.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Axis `{name}` must be a list of numbers, but is {_check.quoted(values)}.") from error
    if axis.ndim != 1:
        raise ValueError(f"Axis `{name}` must be a list of numbers, but is of shape {axis.shape}.")
    if not axis.size:
        raise ValueError(f"Axis `{name}` must have at least one value, but is empty.")
    if np.any(np.isnan(axis)):
        raise ValueError(f"Axis `{name}` must be numbers, but is nan at place {np.argmax(np.isnan(axis))}.")
    return axis


def checked_template(scenario: Scenario, grid: Grid) -> Scenario:
    """The scenario of cell 0, after the same checks for all cells as `Scenario.replace` makes for one.

    A check bounds one leaf, or orders two. Cells with the greatest and least values, and differences of two, therefore
    break one if any cell does: there is no need to build a million scenarios.
    """
    scenarios = {int(cell): _scenario(scenario, grid, cell) for cell in dict.fromkeys(_telling_cells(grid))}
    first = scenarios[0]
    for cell, other in scenarios.items():
        if jax.tree.structure(other) != jax.tree.structure(first):
            raise ValueError(
                f"Cells must be computed alike, but cell {cell} ({_listed(grid, cell)}) clips records where cell 0"
                f" ({_listed(grid, 0)}) need not, or the other way round: sweep them apart."
            )
    return first


def _scenario(scenario: Scenario, grid: Grid, cell: int) -> Scenario:
    try:
        # Of JAX arrays: NumPy's numbers would be plain ones to some checks.
        return scenario.replace(**{name: jnp.asarray(x[0]) for name, x in grid.values(np.asarray([cell])).items()})
    except ValueError as error:
        raise ValueError(f"{error} That is cell {cell}: {_listed(grid, cell)}.") from error


def _listed(grid: Grid, cell: int) -> str:
    return ", ".join(f"{name} = {x[0]:g}" for name, x in grid.values(np.asarray([cell])).items())


def _telling_cells(grid: Grid) -> Iterator[int]:
    yield 0
    if grid.pairing == "product":
        ends = [(np.argmin(values), np.argmax(values)) for values in grid.axes.values()]
        alone = [
            [end if k == other else 0 for other in range(len(ends))] for k, pair in enumerate(ends) for end in pair
        ]
        for place in (*alone, *itertools.product(*ends)):
            yield int(np.ravel_multi_index(tuple(place), grid.shape))
        return
    columns = list(grid.axes.values())
    with np.errstate(invalid="ignore"):
        columns += [one - other for one, other in itertools.combinations(columns, 2)]
    for column in columns:
        yield int(np.argmin(column))
        yield int(np.argmax(column))
