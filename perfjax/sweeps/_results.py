"""The dataset that a sweep returns, and results of chunks in memory."""

import time
from typing import TYPE_CHECKING

import numpy as np

from perfjax._fields import Field, as_dataset
from perfjax.sweeps._chunks import Chunk
from perfjax.sweeps._grid import Grid
from perfjax.sweeps._program import Layout

if TYPE_CHECKING:
    import xarray

__all__ = ["InMemory", "completed", "variable_layouts"]


def variable_layouts(fields: dict[str, Layout], grid: Grid) -> dict[str, Layout]:
    """The fields by their names in the dataset: their own, unless an axis has that."""
    taken = {*grid.axes, *grid.dims}
    return {f"result_{name}" if name in taken else name: layout for name, layout in fields.items()}


class InMemory:
    """Results as arrays, for a sweep that fits and need not survive."""

    def __init__(self, fields: dict[str, Layout], grid: Grid, about: dict[str, str], chunks: list[Chunk]):
        self.grid, self.about, self.seconds = grid, about, np.zeros(len(chunks))
        self.layouts = variable_layouts(fields, grid)
        self.arrays = {name: np.empty(grid.shape + x.shape, x.dtype) for name, x in self.layouts.items()}

    def finished(self) -> np.ndarray:
        return self.seconds > 0

    def write(self, chunk: Chunk, values: list[np.ndarray], start: float) -> None:
        for array, value in zip(self.arrays.values(), values, strict=True):
            array[chunk.region] = value
        self.seconds[chunk.number] = time.perf_counter() - start

    def dataset(self) -> "xarray.Dataset":
        fields = {
            name: Field(self.arrays[name], self.grid.dims + layout.dims, layout.attributes)
            for name, layout in self.layouts.items()
        }
        return completed(as_dataset(fields, attrs=self.about), self.grid, float(self.seconds.sum()))


def completed(data: "xarray.Dataset", grid: Grid, seconds: float) -> "xarray.Dataset":
    """`data` with all coordinates, and the time that it took."""
    coordinates = {name: (field.dims, field.values, field.attributes) for name, field in grid.coordinates().items()}
    releases = {"release": np.arange(data.sizes["release"])} if "release" in data.sizes else {}
    return data.assign_coords(coordinates | releases).assign_attrs(wall_seconds=seconds)
