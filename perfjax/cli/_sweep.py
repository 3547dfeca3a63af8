"""`perfjax sweep`: a sweep file, computed on all devices, alone or with other processes."""

from pathlib import Path
from typing import Annotated

import typer

from perfjax.cli._shared import Dtype, Force, Precision, check_output, fitted_note, library, save_netcdf

__all__ = ["sweep"]


def sweep(
    file: Annotated[Path, typer.Argument(help="Sweep file (TOML).", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="Folder to write to, chunk by chunk; resumes.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also save the result, as netCDF.")] = None,
    force: Force = False,
    chunk: Annotated[int | None, typer.Option(help="Most cells at once; by default what fits.")] = None,
    memory: Annotated[int | None, typer.Option(help="Bytes that a chunk may take.")] = None,
    devices: Annotated[int | None, typer.Option(help="Local devices to use; all by default.")] = None,
    coordinator: Annotated[str | None, typer.Option(help="host:port of process 0, where several share.")] = None,
    processes: Annotated[int | None, typer.Option(help="How many processes share the sweep.")] = None,
    process: Annotated[int | None, typer.Option(help="Which of them this is, from 0.")] = None,
    dtype: Precision = Dtype.float64,
) -> None:
    """Run something for every cell of a grid of scenarios, on all devices; go on where it was stopped."""
    if store is None and out is None:
        raise ValueError("Give --store, --out or both: a sweep's result is too large to print.")
    check_output(out, force=force)
    pj = library(dtype)
    import jax

    first = _meet(coordinator, processes, process)
    asked = pj.sweeps.load_sweep(file)
    limits = {} if memory is None else {"memory": memory}
    data = pj.sweep(
        asked.run,
        asked.scenario,
        asked.over,
        key=None if asked.seed is None else jax.random.key(asked.seed),
        store=store,
        devices=devices,
        chunk=chunk,
        progress=True,
        **asked.options,
        **limits,
    )
    if not first:
        return
    if out is not None:
        with pj.files.replacing(out) as temporary:
            save_netcdf(data, temporary)
    sizes = ", ".join(f"{name} {size}" for name, size in data.sizes.items())
    note = fitted_note(asked.ranges, asked.scenario, swept=asked.over)
    if note is not None:
        print(note)
    print(f"Swept {sizes}: {', '.join(data.data_vars)}. Saved to {' and '.join(str(x) for x in (store, out) if x)}.")


def _meet(coordinator, processes, process) -> bool:
    """Join the other processes, if there are any; whether this is the one that reports."""
    given = [coordinator, processes, process]
    if all(x is None for x in given):
        return True
    if any(x is None for x in given):
        raise ValueError("Give --coordinator, --processes and --process together.")
    if processes < 1 or not 0 <= process < processes:
        raise ValueError(f"Argument `process` must lie in [0, {processes}), but is {process}.")
    import jax

    jax.distributed.initialize(coordinator, processes, process)
    return process == 0
