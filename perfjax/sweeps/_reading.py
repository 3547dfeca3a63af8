"""Read a store without its sweep."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfjax.sweeps._chunks import Chunk, chunks_of
from perfjax.sweeps._definition import axis_text
from perfjax.sweeps._store import BOOKKEEPING, DIGEST, SECONDS, is_whole, listed, marks, opened

if TYPE_CHECKING:
    import xarray

__all__ = ["open_sweep"]

AXIS = "axis_"  # begins the attributes that describe the axes


def open_sweep(path: str | os.PathLike, *, partial: bool = False) -> "xarray.Dataset":
    """Open a store that `sweep` wrote, after a check that every value in it is the one that was written.

    zarr itself reads a chunk whose file is gone as NaN.

    Args:
        path: the folder.
        partial: also open a store with cells that are not computed yet; they are NaN, or -1 if whole numbers.

    Returns:
        `xarray.Dataset` that reads from the store when asked for values.

    Raises:
        ValueError: if there is no store of a sweep, or a chunk is damaged, or, unless `partial`, not computed yet; it
            names the chunks by number and by place along each axis.
    """
    import xarray

    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    group = opened(path, mode="r")
    try:
        chunks, dims, arrays = _layout(group)
        found, digests = marks(group[SECONDS]), group[DIGEST][:].tolist()
        data = xarray.open_dataset(
            path, engine="zarr", chunks=None, consolidated=False, drop_variables=list(BOOKKEEPING)
        )
    except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        words = "its metadata, an axis or its bookkeeping can't be read: run its sweep again"
        raise ValueError(f"{path} is damaged: {words}.") from error
    _check_axes(path, data)
    broken = [x for x in chunks if found[x.number] and not is_whole(arrays, x, digests[x.number])]
    missing = [x for x in chunks if not found[x.number]]
    if broken:
        raise ValueError(f"{path}: {listed(broken, dims)} damaged: run its sweep again, which computes what is.")
    if missing and not partial:
        raise ValueError(
            f"{path}: {listed(missing, dims)} not computed yet: run its sweep again, or give partial=True."
        )
    return data


def _layout(group) -> tuple[list[Chunk], tuple[str, ...], list]:
    """The chunks of a store, their axes, and the arrays of its fields."""
    dims = tuple(group.attrs["axes"].split(", "))
    arrays = [group[name] for name in group.attrs["stored_fields"].split(", ")]
    shape, box = arrays[0].shape[: len(dims)], arrays[0].chunks[: len(dims)]
    return chunks_of(shape, box), dims, arrays


def _check_axes(path: Path, data) -> None:
    for name, text in data.attrs.items():
        axis = name.removeprefix(AXIS)
        if name.startswith(AXIS) and (axis not in data.coords or axis_text(np.asarray(data[axis])) != text):
            raise ValueError(f"{path}: axis `{axis}` is damaged: run its sweep again, which writes it again.")
