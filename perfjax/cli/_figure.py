"""`perfjax figure`: a published figure, its numbers and its picture."""

from pathlib import Path
from typing import Annotated

import typer

from perfjax.cli._shared import (
    Dtype,
    Force,
    Precision,
    answer,
    check_output,
    library,
    records_of,
    save_netcdf,
    without_display,
)

__all__ = ["figure"]


def figure(
    name: Annotated[
        str, typer.Argument(help="1 to 7; recon-1 to recon-5; or groups-1 to groups-5.", show_default=False)
    ],
    full: Annotated[bool, typer.Option("--full", help="The published settings instead of a reduced grid.")] = False,
    data: Annotated[Path | None, typer.Option(help="CSV file with records for recon-2 and recon-3.")] = None,
    column: Annotated[str | None, typer.Option(help="Its column.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.")] = Path("."),
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Redraw a figure of a paper: figure-NAME.png, its numbers in figure-NAME.nc. Long simulations run in float32."""
    which = int(name) if name.isdecimal() else name
    picture, numbers = (out / f"figure-{which}.{kind}" for kind in ("png", "nc"))
    for path in (picture, numbers):
        check_output(path, force=force, inputs=[data])
    pj = library(dtype)
    without_display()
    import jax

    from perfjax import figures

    found = figures.numbers(which, full=full, progress=True, records=records_of(data, column))
    found = found.assign_attrs(dtype=dtype.value, perfjax_version=pj.__version__, jax_version=jax.__version__)

    def show():
        print(f"Figure {which}: {found.attrs['title']}.")
        for line in figures.summary(found):
            print(line)
        print(f"{'Published settings' if full else 'Reduced grid'}, {found.attrs['seconds']:.0f} s.")

    outputs = (
        ("Numbers", numbers, lambda path: save_netcdf(found, path)),
        ("Picture", picture, lambda path: figures.draw(found).savefig(path, dpi=120)),
    )
    answer(pj, outputs, show, quiet=False)
