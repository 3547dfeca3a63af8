"""Figures 2 and 7: the best local budget of randomized response over (leave, recruit), by theory and by simulation.

Theory minimises the mean-field error of the last release. The simulation takes the budget of a grid with the least
error there, as published: the estimate clipped to [0, 1], and an empty run charged with an error of 10.
"""

import functools
from typing import TYPE_CHECKING

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Key
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.patches import Patch

from perfjax.figures._figure import Figure
from perfjax.figures._published import cells_of, key, randomized_response, simulated
from perfjax.montecarlo import runs
from perfjax.objectives import FinalError
from perfjax.scenario import Scenario
from perfjax.sweeps import sweep
from perfjax.tuning import Status, tune

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "draw", "last_error", "recipe", "summary"]

EPSILONS = 0.01, 20.0  # ends of the grid, and what theory searches
EMPTY = 10.0  # error of a release without users
NO_PRIVACY, COLLAPSED = "tab:red", "0.8"  # colours of what has no budget: neither is on the scale of the others


def recipe(number: int, recruiters: str, *, cells: int, levels: int, trials: int, progress: bool) -> "xarray.Dataset":
    """The best budget of every cell, and the simulated error of every budget.

    Args:
        number: the figure.
        recruiters: "spared" or "everyone".
        cells: values of leave, and of recruit.
        levels: budgets, evenly spaced in the logarithm.
        trials: simulated runs for each.
        progress: show bars.
    """
    import xarray

    scenario = randomized_response(recruiters=recruiters, mean=[0.5, 1.0])
    axes = {"leave": cells_of(cells), "recruit": cells_of(cells)}
    epsilons = np.geomspace(*EPSILONS, levels)
    best = functools.partial(tune, objective=FinalError(), bounds=EPSILONS)
    theory = sweep(best, scenario, axes, fields=["noise", "status"], progress=progress)
    process = simulated(scenario.replace(clip_estimate=True, floor=0))
    run = functools.partial(last_error, trials=trials)
    error = sweep(run, process, axes | {"epsilon": epsilons}, key=key(number), progress=progress).value.values
    simulation = np.where(error.min(axis=-1) < EMPTY * (1 - 1e-5), epsilons[np.argmin(error, axis=-1)], np.nan)
    dims = tuple(axes)
    data = xarray.Dataset(
        {
            "theory": (
                dims,
                theory.noise.values,
                {"symbol": "ε*", "units": "nats", "long_name": "infinite: no privacy"},
            ),
            "status": (dims, theory.status.values, theory.status.attrs),
            "simulation": (dims, simulation, {"symbol": "ε*", "units": "nats", "long_name": "NaN: every run is empty"}),
            "error": ((*dims, "epsilon"), error, {"units": "squared error"}),
        },
        coords=axes | {"epsilon": epsilons},
    )
    return data.assign_attrs(trials=trials, recruiters=recruiters)


def last_error(scenario: Scenario, *, key: Key[Array, ""], trials: int) -> Float[Array, ""]:
    """The mean realised error of the last release."""
    paths = runs(scenario, key, trials)
    return jnp.mean(jnp.where(paths.population[:, -1] > 0, paths.error[:, -1], EMPTY))


def summary(data: "xarray.Dataset") -> list[str]:
    """How often privacy pays where the population can grow and where it can't."""
    theories = data.theory.where(data.status != Status.COLLAPSED)
    growing = data.recruit > data.leave
    lines = []
    for words, where in (("recruit > leave", growing), ("recruit <= leave", ~growing)):
        theory, simulation = theories.where(where), data.simulation.where(where)
        finite = (theory < EPSILONS[1] * (1 - 1e-3)).where(theory.notnull())
        count = int(where.sum())
        lines.append(
            f"{words}: of {count} cells {count - int(theory.count())} collapse whatever the budget (by simulation"
            f" {count - int(simulation.count())}: all runs end empty)"
        )
        if theory.count() and simulation.count():
            lines.append(
                f"  of the others a finite budget is best in {float(finite.mean()):.0%}; median best local epsilon"
                f" {float(theory.median()):.3g} (simulated: {float(simulation.median()):.3g})"
            )
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """Heat maps of the best budget; cells where no privacy is best, and those that collapse, have colours of their own.

    The simulation knows no infinite budget: its greatest one, 20, may stand for it.
    """
    held = {"theory": data.theory.where(data.status != Status.COLLAPSED), "simulation": data.simulation}
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for ax, name in zip(axes, ("theory", "simulation"), strict=True):
        without = np.isinf(held[name])
        shown = held[name].where(~without).clip(*EPSILONS)
        image = ax.pcolormesh(data.recruit, data.leave, shown, norm=LogNorm(*EPSILONS), rasterized=True)
        none = np.ma.masked_where(~without, without)
        ax.pcolormesh(data.recruit, data.leave, none, cmap=ListedColormap([NO_PRIVACY]), rasterized=True)
        ax.set(xlabel="recruit r", ylabel="leave q", title=name)
        ax.set_facecolor(COLLAPSED)
    figure.colorbar(image, ax=axes, label="best local budget ε*")
    axes[1].set_title(f"simulation (of budgets up to {EPSILONS[1]:g})")
    keys = {"no privacy is best (ε* infinite)": NO_PRIVACY, "collapses whatever the budget": COLLAPSED}
    patches = [Patch(color=color, label=label) for label, color in keys.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    return figure


def _figure(number: int, recruiters: str, who: str) -> Figure:
    return Figure(
        f"Best local budget of randomized response over leave and recruit, {who} recruit",
        functools.partial(recipe, number, recruiters),
        draw,
        summary,
        {"cells": 15, "levels": 15, "trials": 10},
        {"cells": 30, "levels": 30, "trials": 10},
    )


FIGURES = {2: _figure(2, "spared", "spared users"), 7: _figure(7, "everyone", "all users")}
