"""`perfjax figure`: a published figure, its numbers and its picture."""

from pathlib import Path
from typing import Annotated

import typer

from perfjax.cli._shared import Dtype, Force, Precision, check_output, library, save_netcdf, without_display

__all__ = ["figure"]


def figure(
    name: Annotated[str, typer.Argument(help="1 to 7, as in the paper, or groups-1 to groups-5.", show_default=False)],
    full: Annotated[bool, typer.Option("--full", help="The published settings instead of a reduced grid.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.")] = Path("."),
    force: Force = False,
    dtype: Precision = Dtype.float64,
) -> None:
    """Draw a figure: figure-N.png, and its numbers in figure-N.nc. Simulations run in float32."""
    picture, numbers = (out / f"figure-{name}.{kind}" for kind in ("png", "nc"))
    for path in (picture, numbers):
        check_output(path, force=force)
    pj = library(dtype)
    without_display()
    import jax

    from perfjax import figures

    data = figures.numbers(int(name) if name.isdecimal() else name, full=full, progress=True)
    data = data.assign_attrs(dtype=dtype.value, perfjax_version=pj.__version__, jax_version=jax.__version__)
    print(f"Figure {name}: {data.attrs['title']}.")
    for line in figures.summary(data):
        print(line)
    print(f"{'Published settings' if full else 'Reduced grid'}, {data.attrs['seconds']:.0f} s.")
    with pj.files.replacing(numbers) as temporary:
        save_netcdf(data, temporary)
    with pj.files.replacing(picture) as temporary:
        figures.draw(data).savefig(temporary, dpi=120)
    print(f"Saved to {picture} and {numbers}.")
