"""Chunks: boxes of the grid whose cells are numbered one after the other, and how many of them fit."""

import itertools
import math
import os
from typing import NamedTuple

from perfjax import _check
from perfjax.sweeps._program import Program

__all__ = ["Chunk", "cells_that_fit", "check_memory", "chunk_shape", "chunks_of", "shown_bytes", "too_much"]

MEMORY = 2**30  # bytes that a chunk may take by default
LEAST_CHUNKS = 16  # by default: progress, and something to resume from


class Chunk(NamedTuple):
    """A box of cells: its number, its first cell, how many there are, and where they lie in the grid."""

    number: int
    first: int
    count: int
    region: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.region)


def chunk_shape(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The greatest box of at most `most` cells that are numbered one after the other."""
    box, inner = [], math.prod(shape)
    for length in shape:
        inner //= length
        box.append(max(1, min(length, most // inner)))
    return tuple(box)


def chunks_of(shape: tuple[int, ...], box: tuple[int, ...]) -> list[Chunk]:
    """The grid cut into boxes, those at its ends cut short."""
    starts = itertools.product(*(range(0, length, step) for length, step in zip(shape, box, strict=True)))
    chunks, first = [], 0
    for number, corner in enumerate(starts):
        ends = (min(a + step, length) for a, step, length in zip(corner, box, shape, strict=True))
        region = tuple(slice(a, b) for a, b in zip(corner, ends, strict=True))
        count = math.prod(part.stop - part.start for part in region)
        chunks.append(Chunk(number, first, count, region))
        first += count
    return chunks


def cells_that_fit(program: Program, memory: int | None, processes: int) -> int:
    """The chunk for a budget of `memory` bytes: whole calls, and several chunks for each process."""
    each = 2 * program.cell_bytes  # results are held twice while they are written
    needed = program.bytes + each * program.lanes
    memory = max(MEMORY, needed) if memory is None else _check.as_count(memory, "memory", low=1)
    if memory < needed:
        requirement = f"hold one call, of {program.lanes} cells and {shown_bytes(needed)}"
        raise _check.fail("memory", requirement, shown_bytes(memory))
    fit = (memory - program.bytes) // each
    several = math.ceil(program.grid.size / (LEAST_CHUNKS * processes))
    calls = min(fit // program.lanes, math.ceil(several / program.lanes))
    return calls * program.lanes


def check_memory(program: Program, cells: int, what: str, remedy: str) -> None:
    """Raise a `MemoryError` if the results of so many cells can't fit in this machine's memory."""
    if not hasattr(os, "sysconf"):  # Windows can't be asked
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if program.bytes + cells * program.cell_bytes > total:
        raise too_much(program, cells, what, remedy)


def too_much(program: Program, cells: int, what: str, remedy: str) -> MemoryError:
    """The error that names cells, bytes and a chunk that would fit."""
    fit = max(1, 2**28 // (2 * program.cell_bytes))
    return MemoryError(
        f"Out of memory: {cells} cells of {what} take {shown_bytes(program.bytes + cells * program.cell_bytes)}."
        f" {remedy.format(fit=fit)}"
    )


def shown_bytes(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
