"""`perfjax sweep`: a sweep file, computed on all devices, alone or with other processes."""

import contextlib
import socket
import sys
import threading
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer

from perfjax.cli._shared import Dtype, Force, Precision, check_output, fitted_note, library, save_netcdf

__all__ = ["sweep"]

PARTING = 10.0  # seconds that a process that was stopped waits for the others


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
    check_output(out, force=force, inputs=[file])
    _check_apart(store, out)
    pj = library(dtype)
    import jax

    first = _meet(coordinator, processes, process)
    asked = pj.sweeps.load_sweep(file)
    check_output(out, force=force, inputs=asked.read)
    limits = {} if memory is None else {"memory": memory}
    with _warnings_in_one_line(), _leaving_together(coordinator is not None):
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


def _check_apart(store: Path | None, out: Path | None) -> None:
    """Raise if the result would be written into the store."""
    if out is not None and store is not None and store.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"--out {out} lies in --store {store}: give two paths.")


@contextlib.contextmanager
def _warnings_in_one_line() -> Generator[None]:
    """Show warnings as the command shows its errors."""

    def show(message, *_, **__) -> None:
        print(f"perfjax: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show  # ty: ignore[invalid-assignment]  # to ty every function is of a type of its own
        yield


@contextlib.contextmanager
def _leaving_together(several: bool) -> Generator[None]:
    """On Ctrl-C, which processes of one terminal hear alike, let none end before the others: JAX would abort those."""
    try:
        yield
    except KeyboardInterrupt:
        if several:
            import jax

            leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
            leaving.start()
            leaving.join(PARTING)
        raise


def _meet(coordinator: str | None, processes: int | None, process: int | None) -> bool:
    """Join the other processes, if there are any; whether this is the one that reports."""
    if coordinator is None and processes is None and process is None:
        return True
    if coordinator is None or processes is None or process is None:
        raise ValueError("Give --coordinator, --processes and --process together.")
    if processes < 1 or not 0 <= process < processes:
        raise ValueError(f"Argument `process` must lie in [0, {processes}), but is {process}.")
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f'Argument `coordinator` must be host:port, such as localhost:9000, but is "{coordinator}".')
    if process == 0:
        _check_free(coordinator, int(port))
    import jax

    jax.config.update("jax_enable_preemption_service", False)  # which would swallow a SIGTERM that ends the sweep
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except RuntimeError as error:  # nobody who answers, for one
        raise ValueError(f"No sweep in common at {coordinator}: {str(error).splitlines()[0]}") from error
    return process == 0


def _check_free(coordinator: str, port: int) -> None:
    """Raise if the port is in use: JAX would say so in lines of its own."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            raise ValueError(f"No sweep in common at {coordinator}: {error.strerror}.") from error
