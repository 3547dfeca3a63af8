"""Where the results of chunks go: into memory, or into a store that several processes share and that survives."""

import contextlib
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perfjax._fields import Field, as_dataset
from perfjax.sweeps._chunks import Chunk
from perfjax.sweeps._definition import differences
from perfjax.sweeps._grid import Grid
from perfjax.sweeps._program import Layout, Program

__all__ = ["InMemory", "Store"]

SECONDS = "chunk_seconds"  # per chunk, once it is whole: the seconds it took


def _variable_names(program: Program, grid: Grid) -> dict[str, str]:
    """The name of each field in the dataset: its own, unless an axis has that."""
    taken = {*grid.axes, *grid.dims}
    return {name: f"result_{name}" if name in taken else name for name in program.fields}


def _empty(dtype: np.dtype) -> Any:
    """What stands for a cell that is not computed yet."""
    return {"f": np.nan, "i": -1}.get(dtype.kind, 0)


class InMemory:
    """Results as arrays, for a sweep that fits and need not survive."""

    def __init__(self, program: Program, grid: Grid, about: dict[str, str], chunks: list[Chunk]):
        self.grid, self.about, self.seconds = grid, about, np.zeros(len(chunks))
        names = _variable_names(program, grid)
        self.layouts = {names[name]: layout for name, layout in program.fields.items()}
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
        return _finished(as_dataset(fields, attrs=self.about), self.grid, float(self.seconds.sum()))


class Store:
    """Results in a zarr folder, one file per chunk and field, and one more per chunk that says the others are whole.

    The box of cells that makes a chunk is fixed when the store is created. A file takes its name only when it is
    complete, and the last one of a chunk is `chunk_seconds`: so a chunk counts in full or not at all, wherever the
    process was killed, and several processes may write chunks of their own.
    """

    def __init__(self, path: str | os.PathLike, program: Program, grid: Grid, about: dict[str, str], device: str):
        self.path, self.grid, self.about = Path(path), grid, about
        self.program, self.names = program, _variable_names(program, grid)
        self.device = device

    def open(self, box: tuple[int, ...]) -> tuple[int, ...]:
        """Create the store, or check that the one there is of this sweep; returns the box of its chunks."""
        zarr = _zarr()
        with _told(self.path):
            if not self.path.exists():
                self._create(zarr, box)
        try:
            self.group = zarr.open_group(self.path, mode="r+")
            there = dict(self.group.attrs)
            box = tuple(there["box"])
        except (KeyError, FileNotFoundError, FileExistsError, NotADirectoryError, ValueError) as error:
            raise ValueError(f"{self.path} exists and is no store of a sweep.") from error
        different = differences(there, self.about)
        if different:
            raise ValueError(f"{self.path} holds another sweep: {'; '.join(different)}. Give this one its own store.")
        return box

    def _create(self, zarr, box):
        """Under another name first: of several processes that create the store, one gets its name, and it is whole."""
        temporary = self.path.with_name(f".{self.path.name}.{platform.node()}.{os.getpid()}")
        count = math.prod(-(-n // step) for n, step in zip(self.grid.shape, box, strict=True))
        try:
            group = zarr.create_group(temporary, attributes=self.about | {"box": list(box), "device": self.device})
            for name, layout in self.program.fields.items():
                self._create_field(group, self.names[name], layout, box)
            for name, field in self.grid.coordinates().items():
                group.create_array(name, data=field.values, dimension_names=field.dims, attributes=field.attributes)
            group.create_array(
                SECONDS, shape=(count,), chunks=(1,), dtype="f8", fill_value=0, dimension_names=("chunk",)
            )
            _rename_unless_there(temporary, self.path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _create_field(self, group, name: str, layout: Layout, box):
        group.create_array(
            name,
            shape=self.grid.shape + layout.shape,
            chunks=box + tuple(max(n, 1) for n in layout.shape),
            dtype=layout.dtype,
            fill_value=_empty(layout.dtype),
            dimension_names=self.grid.dims + layout.dims,
            attributes=layout.attributes,
        )

    def finished(self) -> np.ndarray:
        return self.group[SECONDS][:] > 0

    def write(self, chunk: Chunk, values: list[np.ndarray], start: float) -> None:
        with _told(self.path, " Finished chunks are safe there: run the same sweep again to go on."):
            self._write(chunk, values, start)

    def _write(self, chunk, values, start):
        for name, value in zip(self.names.values(), values, strict=True):
            self.group[name][chunk.region] = value
        self.group[SECONDS][chunk.number] = time.perf_counter() - start

    def dataset(self) -> "xarray.Dataset":
        import xarray

        data = xarray.open_dataset(self.path, engine="zarr", chunks=None, consolidated=False, drop_variables=[SECONDS])
        data = data[list(self.names.values())]  # in the order of the fields, not of the alphabet
        del data.attrs["box"]
        return _finished(data, self.grid, float(self.group[SECONDS][:].sum()))


def _finished(data, grid, seconds):
    coordinates = {name: (field.dims, field.values, field.attributes) for name, field in grid.coordinates().items()}
    releases = {"release": np.arange(data.sizes["release"])} if "release" in data.sizes else {}
    return data.assign_coords(coordinates | releases).assign_attrs(wall_seconds=seconds)


def _rename_unless_there(temporary: Path, path: Path) -> None:
    try:
        os.rename(temporary, path)
    except OSError:
        if not path.exists():
            raise


def _zarr():
    try:
        import zarr
    except ImportError as error:
        raise ValueError('A store needs the package zarr: pip install "perfjax[sweeps]".') from error
    return zarr


@contextlib.contextmanager
def _told(path: Path, comfort: str = "") -> Iterator[None]:
    """Say of an error of the system which store it is about, and what is safe."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: {error.strerror or error}.{comfort}") from error
