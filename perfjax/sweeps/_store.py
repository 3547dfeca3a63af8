"""A store: results of chunks in a zarr folder that several processes share, that survives, and that heals."""

import contextlib
import hashlib
import math
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfjax.sweeps._chunks import Chunk, chunks_of
from perfjax.sweeps._definition import differences
from perfjax.sweeps._grid import Grid
from perfjax.sweeps._program import Layout
from perfjax.sweeps._results import completed, variable_layouts

if TYPE_CHECKING:
    import xarray

__all__ = ["BOOKKEEPING", "DIGEST", "SECONDS", "Store", "check_place", "is_whole", "listed", "marks", "opened"]

FORMAT = "perfjax sweep 2"  # to be raised where a store of before could be misread
SECONDS = "chunk_seconds"  # per chunk, once it is whole: the seconds it took
DIGEST = "chunk_digest"  # per chunk: of the values of all its fields
BOOKKEEPING = (SECONDS, DIGEST)


class Store:
    """Results in a zarr folder, one file per chunk and field, and two more per chunk: a digest, and a mark.

    The box of cells that makes a chunk is fixed when the store is created. A file takes its name only when it is
    complete, and the last one of a chunk is its mark, `chunk_seconds`: so a chunk counts in full or not at all,
    wherever the process was killed, and several processes may write chunks of their own. What is found in a store
    counts only if its values have the digest that is recorded: so a file that was deleted, cut or changed is noticed,
    and its chunk computed again.
    """

    def __init__(self, path: str | os.PathLike, fields: dict[str, Layout], grid: Grid, about: dict[str, str]):
        self.path, self.grid = Path(path), grid
        self.layouts = variable_layouts(fields, grid)
        self.about = about | {"stored_fields": ", ".join(self.layouts)}
        self.damaged: list[Chunk] = []

    def check(self) -> None:
        """Raise if there is a store of another sweep."""
        if self.path.exists():
            self._check_same(opened(self.path))

    def open(self, box: tuple[int, ...], about: dict[str, str], device: str) -> list[Chunk]:
        """Create the store, or check that the one there is of this sweep; returns its chunks."""
        self.about |= about
        with _told(self.path):
            if not self.path.exists():
                self._create(box, device)
        self.group = opened(self.path)
        self._check_same(self.group)
        self.chunks = chunks_of(self.grid.shape, self._box())
        self._open_bookkeeping()
        self._restore_coordinates()
        return self.chunks

    def _check_same(self, group) -> None:
        different = differences(dict(group.attrs), self.about)
        if different:
            raise ValueError(f"{self.path} holds another sweep: {'; '.join(different)}. Give this one its own store.")

    def _create(self, box, device: str) -> None:
        """Under another name first: of several processes that create the store, one gets its name, and it is whole."""
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        count = math.prod(-(-n // step) for n, step in zip(self.grid.shape, box, strict=True))
        try:
            group = _zarr().create_group(temporary, attributes=self.about | {"format": FORMAT, "device": device})
            for name, layout in self.layouts.items():
                self._create_field(group, name, layout, box)
            self._create_coordinates(group)
            for name, dtype in ((DIGEST, "u8"), (SECONDS, "f8")):
                group.create_array(
                    name, shape=(count,), chunks=(1,), dtype=dtype, fill_value=0, dimension_names=("chunk",)
                )
            _rename_unless_there(temporary, self.path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _create_field(self, group, name: str, layout: Layout, box) -> None:
        group.create_array(
            name,
            shape=self.grid.shape + layout.shape,
            chunks=box + tuple(max(n, 1) for n in layout.shape),
            dtype=layout.dtype,
            fill_value=_empty(layout.dtype),
            dimension_names=self.grid.dims + layout.dims,
            attributes=layout.attributes,
        )

    def _create_coordinates(self, group) -> None:
        for name, field in self.grid.coordinates().items():
            group.create_array(
                name, data=field.values, dimension_names=field.dims, attributes=field.attributes, overwrite=True
            )

    def _box(self) -> tuple[int, ...]:
        """The box of cells that makes a chunk, by the arrays that hold them."""
        boxes, axes = set(), len(self.grid.shape)
        for name, layout in self.layouts.items():
            array = self._array(name)
            shaped = array.metadata.dimension_names, array.shape, array.dtype
            if shaped != (self.grid.dims + layout.dims, self.grid.shape + layout.shape, layout.dtype):
                raise self._beyond_repair(f"`{name}` has other axes, or another shape or dtype")
            boxes.add(array.chunks[:axes])
        if len(boxes) > 1:
            raise self._beyond_repair("its fields are cut into different chunks")
        return boxes.pop()

    def _open_bookkeeping(self) -> None:
        self.digests, self.seconds = self._array(DIGEST), self._array(SECONDS)
        if {self.digests.shape, self.seconds.shape} != {(len(self.chunks),)}:
            raise self._beyond_repair("its chunks are not as many as are recorded")

    def _array(self, name: str):
        try:
            return self.group[name].with_config({"write_empty_chunks": True})  # or a chunk of NaN would be no file
        except Exception as error:  # of any kind: this is what zarr makes of a file that may hold anything
            raise self._beyond_repair(f"`{name}` can't be read") from error

    def _beyond_repair(self, what: str) -> ValueError:
        return ValueError(f"{self.path} is damaged: {what}. Remove it, and run the sweep again.")

    def _restore_coordinates(self) -> None:
        """The axes are known: write them again if they can't be read, or are not these."""
        for name, field in self.grid.coordinates().items():
            try:
                same = np.array_equal(self.group[name][:], field.values)
            except Exception:  # of any kind, as above
                same = False
            if not same:
                with _told(self.path):
                    self._create_coordinates(self.group)
                return

    def finished(self) -> np.ndarray:
        """Which chunks are there and undamaged; a warning names those that are damaged."""
        found, digests = marks(self.seconds), _readable(self.digests)
        arrays = self._arrays()
        self.damaged = [x for x in self.chunks if found[x.number] and not is_whole(arrays, x, int(digests[x.number]))]
        if self.damaged:
            found[[chunk.number for chunk in self.damaged]] = False
            what = listed(self.damaged, self.grid.dims)
            warnings.warn(f"{self.path}: {what} damaged: computed again.", stacklevel=2)
        return found

    def missing(self) -> list[Chunk]:
        """The chunks that are not there, or still as damaged as they were found."""
        found = marks(self.seconds)
        if self.damaged:
            arrays, digests = self._arrays(), _readable(self.digests)
            self.damaged = [x for x in self.damaged if not is_whole(arrays, x, int(digests[x.number]))]
            found[[chunk.number for chunk in self.damaged]] = False
        return [chunk for chunk in self.chunks if not found[chunk.number]]

    def longest(self) -> float:
        """Seconds that the longest chunk took, of those that are there."""
        return float(_times(self.seconds).max(initial=0))

    def _arrays(self) -> list[Any]:
        return [self._array(name) for name in self.layouts]

    def write(self, chunk: Chunk, values: list[np.ndarray], start: float) -> None:
        """Write a chunk: its values, their digest, and last the mark that it is whole."""
        self._check_there()
        with _told(self.path, " Finished chunks are safe there: run the same sweep again to go on."):
            self._write(chunk, values, start)
        self._check_there()

    def _write(self, chunk, values, start):
        for array, value in zip(self._arrays(), values, strict=True):
            array[chunk.region] = value
        self.digests[chunk.number] = _digest(values)
        self.seconds[chunk.number] = time.perf_counter() - start

    def _check_there(self) -> None:
        """Raise if the folder is gone: zarr would make a new one, and it would be no store."""
        if not (self.path / "zarr.json").is_file():
            raise OSError(f"{self.path} was deleted or renamed while the sweep ran.")

    def dataset(self) -> "xarray.Dataset":
        import xarray

        self._check_there()
        data = xarray.open_dataset(
            self.path, engine="zarr", chunks=None, consolidated=False, drop_variables=list(BOOKKEEPING)
        )
        data = data[list(self.layouts)]  # in the order of the fields, not of the alphabet
        del data.attrs["format"], data.attrs["stored_fields"]
        return completed(data, self.grid, float(_times(self.seconds).sum()))


def check_place(path: str | os.PathLike) -> None:
    """Raise, before anything long, if there can't be a store at `path`, or what is there is no store."""
    path = Path(path)
    _zarr()
    if os.path.lexists(path):
        opened(path)
        return
    parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise ValueError(f"{path}: {parent} is no folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OSError(f"{path}: no permission to write to the folder {parent}.")


def opened(path: Path, mode: str = "r+"):
    """The zarr group of a store of this format."""
    try:
        group = _zarr().open_group(path, mode=mode)
        attributes = dict(group.attrs)
    except PermissionError as error:
        raise OSError(f"{path}: {error.strerror}.") from error
    except (KeyError, TypeError, OSError, ValueError) as error:  # what zarr makes of a folder that may hold anything
        raise ValueError(f"{path} exists and is no store of a sweep.") from error
    if attributes.get("format") == FORMAT:
        return group
    if {"scenario", "pairing"} <= attributes.keys():
        raise ValueError(f"{path} is a store in the format of another version of perfjax. Give this sweep its own.")
    raise ValueError(f"{path} exists and is no store of a sweep.")


def marks(seconds) -> np.ndarray:
    """Which chunks are marked as whole."""
    return _times(seconds) > 0


def _times(seconds) -> np.ndarray:
    """Seconds per chunk, 0 where they can't be right."""
    times = _readable(seconds)
    return np.where(np.isfinite(times) & (times > 0), times, 0)


def _readable(array) -> np.ndarray:
    """The numbers of an array of a number per chunk, 0 for those that can't be read."""
    with contextlib.suppress(Exception):
        return array[:]
    found = np.zeros(array.shape, array.dtype)
    for k in range(len(found)):
        with contextlib.suppress(Exception):  # of any kind: what zarr makes of a file that may hold anything
            found[k] = array[k]
    return found


def is_whole(arrays: list[Any], chunk: Chunk, digest: int) -> bool:
    """Whether the chunk's values are there, and have the digest that is recorded for them."""
    try:
        return _digest([array[chunk.region] for array in arrays]) == digest
    except MemoryError:
        raise
    except Exception:  # of any kind: what zarr and its codecs make of files that may hold anything
        return False


def _digest(values: list[np.ndarray]) -> int:
    found = hashlib.blake2b(digest_size=8)
    for value in values:
        found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return int.from_bytes(found.digest(), "little")


def listed(chunks: list[Chunk], dims: tuple[str, ...]) -> str:
    """Chunks by number and indices along each axis, the first few, with the verb."""
    shown = [f"{x.number} ({_where(x, dims)})" for x in chunks[:3]]
    more = f" and {len(chunks) - 3} more" if len(chunks) > 3 else ""
    return f"chunk {shown[0]} is" if len(chunks) == 1 else f"chunks {', '.join(shown)}{more} are"


def _where(chunk: Chunk, dims: tuple[str, ...]) -> str:
    return ", ".join(f"{dim}[{part.start}:{part.stop}]" for dim, part in zip(dims, chunk.region, strict=True))


def _empty(dtype: np.dtype) -> Any:
    """What stands for a cell that is not computed yet."""
    return {"f": np.nan, "i": -1}.get(dtype.kind, 0)


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
def _told(path: Path, comfort: str = "") -> Generator[None]:
    """Say of an error of the system which store it is about, and what is safe."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: {error.strerror or error}.{comfort}") from error
