"""`sweep`: one run for every cell of a grid of scenarios."""

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Key

from perfjax import _check
from perfjax._check import Numbers
from perfjax.scenario import Scenario
from perfjax.sweeps._chunks import Chunk, cells_that_fit, check_memory, chunk_shape, chunks_of, too_much
from perfjax.sweeps._definition import definition
from perfjax.sweeps._fingerprint import fingerprint
from perfjax.sweeps._grid import as_grid, checked_template
from perfjax.sweeps._program import Program, as_devices, bound, compiled_program, traced_run
from perfjax.sweeps._progress import reporting
from perfjax.sweeps._results import InMemory
from perfjax.sweeps._store import Store, check_place, listed

if TYPE_CHECKING:
    import xarray

__all__ = ["sweep"]

SMALLER = "Give a smaller chunk, such as chunk={fit} (in a new store, if one is begun), or keep fewer fields."
STORED = "Give `store`, so that only a chunk is held at once (chunk={fit} would fit), or keep fewer fields."
PATIENCE = 0.5  # seconds between looks at what the other processes have finished
LIMIT = 600.0  # seconds without news of them, or
LONGEST = 10  # times the longest chunk, whichever is more, before they are given up


def sweep(
    run: Callable,
    scenario: Scenario,
    over: Mapping[str, Numbers],
    *,
    pairing: str = "product",
    trials: int | None = None,
    key: Key[Array, ""] | None = None,
    fields: Iterable[str] | None = None,
    store: str | os.PathLike | None = None,
    devices: int | Sequence[jax.Device] | None = None,
    chunk: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> "xarray.Dataset":
    """Run something for every cell of a named grid, on all devices, a chunk at a time.

    A cell's result depends on the sweep and the cell alone: with a key, cell k gets `jax.random.fold_in(key, k)`, cells
    being numbered along the last axis first; and every cell goes through one compiled program of one shape, so that on
    CPUs chunks, devices and processes do not change a bit.

    After `jax.distributed.initialize`, every process calls this with the same arguments and computes its share of the
    chunks on its own devices; they meet in `store`, which all of them must reach.

    Args:
        run: a pure function run(scenario) or run(scenario, key=key), such as `tune`, `mean_field`, `population_law`,
            `simulate_counts` or an objective; bind other arguments with `functools.partial`. It returns a result of
            perfjax, an array, or any pytree of arrays; it is traced, and must not look at values.
        scenario: the scenario to vary.
        over: numbers by leaf name, such as {"leave": q, "recruit": r}, one list per axis. Choices and counts (such as
            `recruiters` and `rounds`) can't be axes: make one sweep for each.
        pairing: "product", all combinations; or "zip", axes of one length, cell k has the k-th of each.
        trials: the run's own argument, for one that samples.
        key: randomness, for a run that samples.
        fields: names of the result's fields to keep, all by default. A law's `probability` is large.
        store: a zarr folder (needs the package zarr). Each chunk is written when done, whole or not at all, with a
            digest of its values. If it holds a part of this sweep, the rest is computed, and with a warning whatever
            was deleted or damaged. If it holds another sweep, an error says what differs: the axes in another order
            are another sweep, and so is a run whose code, defaults, bound arguments or object, or globals changed (the
            program that JAX traces it to is compared, with every constant in it). A run that calls back into Python
            can't have a store. Ctrl-C or SIGTERM ends the sweep after the chunk at hand, a second one at once. Without
            `store`, results are held in memory.
        devices: how many local devices, or which; all by default.
        chunk: most cells computed and stored at once, by default what fits in `memory` and makes 16 chunks for each
            process. An existing store keeps its own.
        memory: bytes that a chunk may take, program and results; by default 1 GiB, or more if one
            call of the program takes more.
        progress: show cells done, cells per second and time left on stderr.

    Returns:
        `xarray.Dataset` over the axes ("zip": over `cell`) and those of the result, such as `release` and `trial`. An
        infeasible cell is NaN and its `status` says so; statuses are integers with their meanings in the attributes.
        The dataset's attributes say what ran: run, scenario (as a TOML file, with the first value of every axis), key,
        versions, device, and seconds spent. A field named like an axis becomes `result_<name>`. With a store the
        dataset reads from it when asked for values.

    Raises:
        ValueError: on bad input: an unknown axis (the nearest leaf is named), an empty or NaN axis, a value out of
            range (the cell is named), axes of different length under zip, no device, a store of another sweep, or one
            damaged beyond repair.
        MemoryError: if a chunk, or without a store the whole result, can't fit; it names a chunk that would.
        OSError: if the store can't be written, or is deleted or renamed meanwhile, or other processes finish nothing
            for ten minutes or ten times the longest chunk; what is finished stays.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, saying how to go on.

    Warns:
        UserWarning: if chunks of the store are damaged; it names them, and they are computed again.

    Source: ours.

    Example:
        >>> import perfjax as pj
        >>> scenario = pj.preset("mean-estimation")
        >>> grid = pj.sweep(pj.mean_field, scenario, {"leave": [0.1, 0.5], "recruit": [0.1, 0.2, 0.3]})
        >>> dict(grid.error.sizes)
        {'leave': 2, 'recruit': 3, 'release': 51}
    """
    processes = jax.process_count()
    if processes > 1 and store is None:
        raise ValueError("Argument `store` must be given where several processes share a sweep.")
    devices = as_devices(devices)
    chunk = None if chunk is None else _check.as_count(chunk, "chunk", low=1)
    grid = as_grid(scenario, over, pairing)
    if store is not None:
        check_place(store)
    run, key = bound(run, trials, key)
    template = checked_template(scenario, grid)
    traced = traced_run(run, template, grid, key=key, fields=fields)
    about = definition(run, template, grid, traced, key)
    if store is not None:
        results = Store(store, traced.fields, grid, about | {"program": fingerprint(traced.jaxpr)})
        results.check()  # before what takes long
    program = compiled_program(traced, devices)
    box = chunk_shape(grid.shape, chunk or cells_that_fit(program, memory, processes))
    block = {"block": str(program.block)}
    device = f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform}), {processes} processes"
    if store is None:
        check_memory(program, grid.size, "the whole sweep", STORED)
        chunks = chunks_of(grid.shape, box)
        results = InMemory(traced.fields, grid, about | block | {"device": device}, chunks)
    else:
        check_memory(program, math.prod(box), "one chunk", SMALLER)
        chunks = results.open(box, block, device)
        check_memory(program, chunks[0].count, "one chunk", SMALLER)  # the store may have larger ones
    _compute(program, chunks, results, progress)
    return results.dataset()


def _compute(program: Program, chunks: list[Chunk], results: InMemory | Store, progress: bool) -> None:
    """Compute and write what is not finished of this process's chunks, then wait for the others'."""
    before = results.finished()
    own = [chunk for chunk in chunks if chunk.number % jax.process_count() == jax.process_index()]
    cells = sum(chunk.count for chunk in own)
    done = sum(chunk.count for chunk in own if before[chunk.number])
    with reporting(progress, cells, done) as report, _interruptions(results) as asked:
        for chunk in own:
            if before[chunk.number]:
                continue
            start = time.perf_counter()
            results.write(chunk, _computed(program, chunk), start)
            done += chunk.count
            report(done)
            if isinstance(results, Store) and asked.is_set():
                raise KeyboardInterrupt(
                    f"stopped after {done} of {cells} cells, which are safe in {results.path}:"
                    " run the same sweep again to go on"
                )
    if isinstance(results, Store):
        _wait_for_others(results, {chunk.number for chunk in own}, progress)


def _wait_for_others(results: Store, own: set[int], progress: bool) -> None:
    """Wait until all chunks are there, as long as they become more; raise if one of this process's own is not."""
    left, news = None, time.monotonic()
    while missing := results.missing():
        if any(chunk.number in own for chunk in missing):
            words = "missing or damaged again: did something else change the store? Run the same sweep again"
            raise OSError(f"{results.path}: {listed(missing, results.grid.dims)} {words}.")
        if progress and left is None:
            print(f"waiting for {len(missing)} chunks of other processes", file=sys.stderr, flush=True)
        if len(missing) != left:
            left, news = len(missing), time.monotonic()
        elif time.monotonic() - news > max(LIMIT, LONGEST * results.longest()):
            words = f"not there after {LIMIT:.0f} s without news of the other processes: run the same sweep again"
            raise TimeoutError(f"{results.path}: {listed(missing, results.grid.dims)} {words}.")
        time.sleep(PATIENCE)


def _computed(program: Program, chunk: Chunk) -> list[np.ndarray]:
    """The fields of a chunk's cells; while one call's results are copied, the next one runs."""
    try:
        values = [np.empty((chunk.count, *field.shape), field.dtype) for field in program.fields.values()]
        running = None
        for first in range(0, chunk.count, program.lanes):
            count = min(program.lanes, chunk.count - first)
            following = first, count, program.start(chunk.first + first, count)
            if running is not None:
                _collect(values, *running)
            running = following
        assert running is not None
        _collect(values, *running)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            raise too_much(program, chunk.count, "one chunk", SMALLER) from error
        raise
    return [value.reshape(chunk.shape + value.shape[1:]) for value in values]


def _collect(values, first, count, results):
    for value, result in zip(values, results, strict=True):
        value[first : first + count] = np.asarray(result)[:count]


@contextlib.contextmanager
def _interruptions(results: InMemory | Store) -> Generator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, the first time; only for a store, which has something to finish."""
    asked = threading.Event()
    if not isinstance(results, Store) or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def heard(number, frame):
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
