"""Figure 4 of the paper on reconstruction: triples of records under smooth threshold counts.

The bound against the number of thresholds has a finite minimum under basic composition. Where it lies depends on the
records and, which the paper does not say, on the grid: triples near the ends need more thresholds of a grid inside the
box, and fewer of one that has thresholds at its ends.
"""

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from perfjax.figures._figure import Figure
from perfjax.reconstruction import Bump, Logistic, ScanStatus, Smoothstep, Thresholds, scan_releases

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "TRIPLES", "draw", "recipe", "summary"]

EPSILON, DELTA = 1.0, 1e-5
TRIPLES = {
    "spread": (-0.5, 0.0, 0.5),
    "uneven": (-0.6, 0.1, 0.5),
    "close": (-0.1, 0.0, 0.1),
    "at the ends": (-0.95, 0.0, 0.95),
    "pair at an end": (-0.98, -0.9, 0.3),
}
STEPS = {"logistic 0.1": Logistic(0.1), "smoothstep 0.3": Smoothstep(0.3), "bump 0.5": Bump(0.5)}
GRIDS = ("midpoint", "interior", "endpoint")


def recipe(*, most: int, progress: bool) -> "xarray.Dataset":
    """The bound on a triple against the number of thresholds, by shape of the count and grid.

    Args:
        most: greatest number of thresholds; all from 3 are taken.
        progress: not used: it is a matter of seconds.
    """
    import xarray

    del progress
    records = np.asarray(list(TRIPLES.values()))
    scans = [
        [
            scan_releases(
                Thresholds(step, grid=grid, sensitivity="paper"),
                records,
                releases=(3, most),
                epsilon=EPSILON,
                delta=DELTA,
                accountant="basic",
            )
            for grid in GRIDS
        ]
        for step in STEPS.values()
    ]

    def table(read):
        return np.stack([[np.asarray(read(scan)) for scan in row] for row in scans])

    dims = ("step", "grid", "triple")
    return xarray.Dataset(
        {
            "bound": ((*dims, "releases"), table(lambda scan: scan.bound)),
            "best_releases": (dims, table(lambda scan: scan.best_releases)),
            "best_bound": (dims, table(lambda scan: scan.best_bound)),
            "status": (dims, table(lambda scan: scan.status)),
        },
        coords={
            "step": list(STEPS),
            "grid": list(GRIDS),
            "triple": list(TRIPLES),
            "releases": np.arange(3, most + 1),
        },
    ).assign_attrs(epsilon=EPSILON, delta=DELTA)


def summary(data: "xarray.Dataset") -> list[str]:
    """The best number of thresholds of every triple, by grid, and how many of these are certain."""
    lines = []
    for step in data.step.values:
        for triple in data.triple.values:
            best = data.best_releases.sel(step=step, triple=triple)
            listed = ", ".join(f"{grid} {int(best.sel(grid=grid))}" for grid in data.grid.values)
            lines.append(f"{step}, {triple} {TRIPLES[triple]}: best number of thresholds {listed}")
    certain = int((data.status == ScanStatus.CERTIFIED).sum())
    lines.append(f"{certain} of {data.status.size} minima are certified; the others are the least of those scanned")
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """A panel for each shape on the midpoint grid, and the best numbers of thresholds for every grid."""
    figure, axes = plt.subplots(1, 4, figsize=(18, 4.2), layout="constrained")
    for ax, step in zip(axes, data.step.values, strict=False):
        for number, triple in enumerate(data.triple.values):
            shown = data.bound.sel(step=step, triple=triple, grid="midpoint")
            ax.plot(data.releases, shown, color=f"C{number}", label=f"{triple} {TRIPLES[triple]}")
            best = int(np.argmin(shown.values))
            ax.plot(data.releases[best], shown[best], "o", color=f"C{number}", markersize=4)
        ax.set(xlabel="thresholds L", ylabel="bound on the triple", yscale="log", title=f"{step}, midpoint grid")
    axes[0].legend(fontsize="x-small")
    place = np.arange(data.sizes["triple"])
    for number, grid in enumerate(data.grid.values):
        best = data.best_releases.sel(step=data.step.values[0], grid=grid)
        axes[3].bar(place + 0.27 * (number - 1), best, 0.27, label=grid)
    axes[3].set_xticks(place, data.triple.values, rotation=20, fontsize="small")
    axes[3].set(xlabel="triple", ylabel="best number of thresholds", title=f"{data.step.values[0]}, by grid")
    axes[3].legend(fontsize="small")
    return figure


FIGURES = {
    "recon-4": Figure(
        "Bound on a triple of records against the number of thresholds, by shape and grid",
        recipe,
        draw,
        summary,
        {"most": 60},
        {"most": 100},
    )
}
