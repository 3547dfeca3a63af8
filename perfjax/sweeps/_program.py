"""The batch layer: a run compiled once, for a fixed number of cells on every device.

Whatever the chunks, devices and hosts, a cell goes through the same program of the same shape, so that its bits are the
same. The last block of a chunk is filled up with a cell of its own.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from perfjax import _check
from perfjax._fields import Field, Named
from perfjax.montecarlo._inputs import as_key
from perfjax.scenario import Scenario
from perfjax.sweeps._grid import Grid

__all__ = ["Layout", "Program", "Traced", "as_devices", "bound", "compiled_program", "traced_run"]

BLOCK = {"cpu": 256}  # cells at once on one device: on a CPU about what its caches hold
LARGE_BLOCK = 8192  # on an accelerator, which needs many to be busy
BLOCK_BYTES = 2**28  # most memory of a block; heavier runs get a smaller one


class Layout(NamedTuple):
    """One field of a cell's result."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: dict[str, Any]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Traced(NamedTuple):
    """A run traced for one cell.

    Attributes:
        fields: what one cell yields, by name.
        one: the fields' values from a cell's number, its leaves and, if the run samples, a key.
        cell: shapes of the first two.
        arguments: the rest.
        jaxpr: what `one` computes.
    """

    fields: dict[str, Layout]
    one: Callable
    cell: tuple[Any, ...]
    arguments: tuple[Any, ...]
    jaxpr: ClosedJaxpr
    grid: Grid


class Program(NamedTuple):
    """A compiled run of a block of cells on every device.

    Attributes:
        fields: what one cell yields, by name.
        block: cells on a device.
        lanes: cells on all devices.
        bytes: memory of one call, on all devices together.
    """

    fields: dict[str, Layout]
    block: int
    lanes: int
    bytes: int
    grid: Grid
    arguments: tuple[Any, ...]
    sharding: NamedSharding
    compiled: Callable

    @property
    def cell_bytes(self) -> int:
        return sum(field.bytes for field in self.fields.values())

    def start(self, first: int, count: int) -> list[Array]:
        """Begin to compute up to `lanes` cells; the fields' values arrive later."""
        cells = first + np.minimum(np.arange(self.lanes), count - 1)
        inputs = cells.astype(np.uint32), self.grid.values(cells)
        return self.compiled(*jax.device_put(inputs, self.sharding), *self.arguments)


def as_devices(devices: int | Sequence[jax.Device] | None) -> list[jax.Device]:
    """Local devices: all of them, so many of them, or those given."""
    local = jax.local_devices()
    if devices is None:
        return local
    if isinstance(devices, Sequence) and all(isinstance(device, jax.Device) for device in devices):
        if not devices:
            raise _check.fail("devices", "name at least one device", "empty")
        return list(devices)
    count = _check.as_count(devices, "devices", low=1)
    if count > len(local):
        raise _check.fail("devices", f"be at most {len(local)}, the number of local devices", count)
    return local[:count]


def bound(run: Callable, trials: int | None, key: Key[Array, ""] | None) -> tuple[Callable, Key[Array, ""] | None]:
    """`run` with `trials` bound, and the key if it takes one."""
    parameters = inspect.signature(run).parameters
    takes_key = "key" in parameters
    if trials is not None:
        if "trials" not in parameters:
            raise ValueError(f"Argument `trials` goes with a run that has trials, which {_name(run)} has not.")
        run = functools.partial(run, trials=_check.as_count(trials, "trials", low=1))
    if key is not None and not takes_key:
        raise ValueError(f"Argument `key` goes with a run that takes one, which {_name(run)} does not.")
    if key is None and takes_key and parameters["key"].default is inspect.Parameter.empty:
        raise ValueError(f"Argument `key` must be given: {_name(run)} samples.")
    return run, None if key is None else as_key(key)


def _name(run):
    return getattr(run, "__name__", None) or getattr(getattr(run, "func", None), "__name__", type(run).__name__)


def traced_run(
    run: Callable,
    template: Scenario,
    grid: Grid,
    *,
    key: Key[Array, ""] | None,
    fields: Iterable[str] | None,
) -> Traced:
    """Trace `run` for a cell of `grid`."""
    described: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {}
    fields = _names(fields)

    def one(cell, values, *keys):
        scenario = template.with_leaves(**values)
        options = {"key": jax.random.fold_in(keys[0], cell)} if keys else {}
        found = _chosen(_named_fields(run(scenario, **options)), fields)
        # Not the values: they must not outlive the trace.
        described.update({name: (field.dims, field.attributes) for name, field in found.items()})
        return [field.values for field in found.values()]

    arguments = () if key is None else (key,)
    example = grid.values(np.arange(1))
    cell = jax.tree.map(lambda x: jax.ShapeDtypeStruct((), x.dtype), (np.zeros(1, np.uint32), example))
    jaxpr, shapes = jax.make_jaxpr(one, return_shape=True)(*cell, *arguments)
    layouts = {
        name: Layout(dims, shape.shape, np.dtype(shape.dtype), attributes)
        for (name, (dims, attributes)), shape in zip(described.items(), shapes, strict=True)
    }
    _check_sizes(layouts, grid)
    return Traced(layouts, one, cell, arguments, jaxpr, grid)


def compiled_program(traced: Traced, devices: Sequence[jax.Device]) -> Program:
    """Compile a run for cells of its grid, in blocks that depend on nothing but the run and the grid."""
    block = min(BLOCK.get(devices[0].platform, LARGE_BLOCK), 1 << (traced.grid.size - 1).bit_length())
    parts = traced.one, traced.cell, traced.arguments
    sharding, compiled, size = _compiled(*parts, block, devices)
    if size > BLOCK_BYTES and block > 1:
        block = 1 << max(BLOCK_BYTES * block // size, 1).bit_length() - 1  # a power of two
        sharding, compiled, size = _compiled(*parts, block, devices)
    lanes, total = block * len(devices), size * len(devices)
    return Program(traced.fields, block, lanes, total, traced.grid, traced.arguments, sharding, compiled)


def _compiled(one, cell, arguments, block, devices):
    """The program for `block` cells on each device, its sharding, and the bytes it takes on one."""
    mesh = Mesh(np.asarray(devices), ("cells",))
    cells, everywhere = PartitionSpec("cells"), PartitionSpec()
    sharding = NamedSharding(mesh, cells)
    lanes = jax.vmap(one, in_axes=(0, 0, *(None for _ in arguments)))
    specs = (cells, cells, *(everywhere for _ in arguments))
    # No check of what varies over devices: nothing is exchanged between them, and loops over cells would need casts.
    program = jax.jit(jax.shard_map(lanes, mesh=mesh, in_specs=specs, out_specs=cells, check_vma=False))
    shape = (block * len(devices),)
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding), cell)
    compiled = program.lower(*inputs, *jax.device_put(arguments, NamedSharding(mesh, everywhere))).compile()
    used = compiled.memory_analysis()
    # Twice what goes in and out: while one block is read, the next one runs.
    size = used.temp_size_in_bytes + 2 * (used.output_size_in_bytes + used.argument_size_in_bytes) if used else 0
    return sharding, compiled, size


def _named_fields(result: Any) -> dict[str, Field]:
    """The fields of a result by its own account, or else one per array in it; never a scenario."""
    found = {}
    parts = jax.tree_util.tree_leaves_with_path(result, is_leaf=lambda x: isinstance(x, Named | Scenario))
    for path, part in parts:
        name = jax.tree_util.keystr(path, simple=True, separator="_")
        if isinstance(part, Named):
            found |= {f"{name}_{inner}" if name else inner: field for inner, field in part.fields().items()}
        elif not isinstance(part, Scenario) and (eqx.is_array_like(part)):
            values = jnp.asarray(part)
            name = name or "value"
            found[name] = Field(values, tuple(f"{name}_axis{k}" for k in range(values.ndim)), {})
    if not found:
        raise _check.fail("run", "return arrays", f"a function that returns {type(result).__name__}")
    return found


def _names(fields: object) -> tuple[str, ...] | None:
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise _check.fail("fields", "be a list of names", _check.quoted(fields))
    names = tuple(fields)
    if not names:
        raise _check.fail("fields", "name at least one field", "empty")
    return names


def _chosen(found: dict[str, Field], fields: tuple[str, ...] | None) -> dict[str, Field]:
    if fields is None:
        return found
    _check.check_known(fields, list(found), "field")
    return {name: found[name] for name in fields}


def _check_sizes(layouts, grid):
    """Raise if one name stands for axes of two lengths: a dataset could not hold them."""
    sizes = dict(zip(grid.dims, grid.shape, strict=True))
    for name, layout in layouts.items():
        for dim, size in zip(layout.dims, layout.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(f"Axis `{dim}` of field `{name}` has {size} places, and {sizes[dim]} elsewhere.")
