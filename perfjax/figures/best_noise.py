"""Figures 4 and 5: the best noise of mean estimation over (leave, recruit), by simulation and by three theories.

- Simulation: the noise of the grid with the least simulated error, as published: the likelihood ratio with the noise
  variance recomputed, releases 0..T-1, a collapsed run counted by the releases it survived.
- Bound: the closed form of Lemma 9, as published: shared noise variance, releases 1..T.
- Recursion: the mean field with shared noise variance too (recomputed, it takes ten times as long and moves the best
  noise by some 2 %), but of releases 0..T-1, which are simulated.
- Law: of the very process that is simulated, but collapsed runs stay at the floor; best of the simulated noises.
"""

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Key
from matplotlib.colors import LogNorm

from perfjax.figures._figure import Figure
from perfjax.figures._published import cells_of, key, mean_estimation, simulated
from perfjax.law import law_of
from perfjax.montecarlo import runs
from perfjax.objectives import CumulativeBound, CumulativeError, score_runs
from perfjax.scenario import Scenario
from perfjax.sweeps import sweep
from perfjax.tuning import tune

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "agreement", "draw", "draw_lines", "law_error", "recipe", "simulated_errors", "summary"]

NOISES = 0.2, 20.0  # ends of the simulated grid
SEARCHED = 0.02, 20.0  # what theory searches
THEORIES = {
    "bound": "closed-form bound (as published)",
    "recursion": "mean-field recursion",
    "law": "law of the population",
}
TRUSTED = 0.02  # greatest estimated relative error with which the law's number is used
LINES = (0.01, 0.18, 0.35, 0.52, 0.69)  # leave probabilities of the line plots


def recipe(
    thresholds: Sequence[float], *, cells: int, levels: int, trials: int, law_every: int, law_nodes: int, progress: bool
) -> "xarray.Dataset":
    """The best noise, and the simulated error of every noise.

    Args:
        thresholds: tau, in nats.
        cells: values of leave, and of recruit.
        levels: noise scales, evenly spaced in the logarithm.
        trials: simulated runs for each.
        law_every: the law takes every so many of leave, and of recruit; elsewhere its best noise is NaN.
        law_nodes: log-spaced nodes of the law; it skips noises for which they are too few.
        progress: show bars.
    """
    import xarray

    published = mean_estimation()
    process = published.replace(outside="recomputed")
    axis, noises = cells_of(cells), np.geomspace(*NOISES, levels)
    axes = {"threshold": np.asarray(thresholds), "leave": axis, "recruit": axis}
    some = axes | {"leave": axis[::law_every], "recruit": axis[::law_every]}
    clock = _Clock(progress)
    runs_of = functools.partial(simulated_errors, trials=trials)
    sampled = clock.sweep("simulation", runs_of, simulated(process), axes | {"noise_scale": noises}, key=key(4))
    bound = clock.tune("bound", CumulativeBound(), published.replace(rounds=published.rounds + 1), axes)
    recursion = clock.tune("recursion", CumulativeError(first_release=0), published, axes)
    law_of_sizes = functools.partial(law_error, nodes=law_nodes)
    law = np.full(sampled["floor"].shape, np.nan)
    some_law = clock.sweep("law", law_of_sizes, simulated(process), some | {"noise_scale": noises})
    law[:, ::law_every, ::law_every] = some_law.value.values
    on_cells = ("threshold", "leave", "recruit")
    data = xarray.Dataset(coords=axes | {"noise_scale": noises})
    errors = {kind: sampled[kind].values for kind in ("survived", "floor")} | {"law": law}
    for kind, values in errors.items():
        data[f"error_{kind}"] = ((*on_cells, "noise_scale"), values, {"units": "squared error"})
    best = {"simulation": noises[np.argmin(errors["survived"], axis=-1)], "bound": bound, "recursion": recursion}
    known = ~np.all(np.isnan(law), axis=-1)
    best["law"] = np.where(known, noises[np.argmin(np.where(np.isnan(law), np.inf, law), axis=-1)], np.nan)
    for name, values in best.items():
        data[name] = (on_cells, values, {"long_name": f"best noise by {name}", "symbol": "γ*"})
    releases = trials * sampled["survived"].size * (process.rounds + 1)
    return data.assign_attrs(clock.seconds, trials=trials, law_nodes=law_nodes, simulated_releases=float(releases))


class _Clock:
    """Sweeps, and the seconds that each took."""

    def __init__(self, progress: bool):
        self.progress, self.seconds = progress, {}

    def sweep(self, name, run, scenario, over, **options):
        start = time.perf_counter()
        data = sweep(run, scenario, over, progress=self.progress, **options)
        self.seconds[f"seconds_{name}"] = time.perf_counter() - start
        return data

    def tune(self, name, objective, scenario, over):
        run = functools.partial(tune, objective=objective, bounds=SEARCHED)
        return self.sweep(name, run, scenario, over, fields=["noise"]).noise.values.astype(float)


def simulated_errors(scenario: Scenario, *, key: Key[Array, ""], trials: int) -> dict[str, Float[Array, ""]]:
    """The summed error of all releases, collapsed runs counted by the releases they survived, and at the floor.

    Each release counts with its error's expectation given its users: the same mean as its realised error, less noise.
    """
    paths = runs(scenario, key, trials)

    def counted(collapsed):
        objective = CumulativeError(solver="counts", trials=trials, collapsed=collapsed)
        return score_runs(objective, paths, slice(None))[0]

    return {collapsed: counted(collapsed) for collapsed in ("survived", "floor")}


def law_error(scenario: Scenario, *, nodes: int) -> Float[Array, ""]:
    """The expected summed error of all releases, a collapsed run counted at the floor; NaN where too few nodes."""
    law = law_of(scenario, nodes)
    return jnp.where(jnp.abs(law.relative_error) < TRUSTED, jnp.sum(law.expected_error), jnp.nan)


def agreement(data: "xarray.Dataset", theory: str) -> "xarray.Dataset":
    """How a theory's best noise compares with the simulated one, by threshold.

    Args:
        data: of `recipe`.
        theory: "bound", "recursion" or "law".

    Returns:
        `near`, the share of cells where it is within one step of the noise grid; and the median over cells of the
        simulated error there over the best simulated error, collapsed runs counted as `survived` and as `floor`.
    """
    import xarray

    log_grid = np.log(data.noise_scale.values)
    noise = data[theory]
    known = noise.notnull()
    steps = np.abs(np.log(np.maximum(noise, SEARCHED[0])) - np.log(data.simulation)) / (log_grid[1] - log_grid[0])
    cells = ("leave", "recruit")
    found = {"near": (steps <= 1 + 1e-6).where(known).mean(cells)}
    for kind in ("survived", "floor"):
        error = data[f"error_{kind}"]
        there = xarray.apply_ufunc(
            lambda x, y: np.exp(np.interp(np.log(np.maximum(x, NOISES[0])), log_grid, np.log(y))),
            noise.fillna(1),
            error,
            input_core_dims=[[], ["noise_scale"]],
            vectorize=True,
        )
        found[kind] = (there / error.min("noise_scale")).where(known).median(cells)
    return xarray.Dataset(found)


def summary(data: "xarray.Dataset") -> list[str]:
    """For each threshold, how near each theory's noise is to the best simulated one, and what it costs."""
    lines = []
    for threshold in data.threshold.values:
        lines.append(f"threshold {threshold:g}: best noise against the best simulated one, and its simulated error")
        for theory, meaning in THEORIES.items():
            found = agreement(data, theory).sel(threshold=threshold)
            lines.append(
                f"  {meaning:33s} {int(data[theory].sel(threshold=threshold).count()):4d} cells,"
                f" {float(found.near):6.1%} within one grid step; median error {float(found.survived):.3f} times the"
                f" best ({float(found.floor):.3f} with collapsed runs kept at the floor)"
            )
    seconds = data.attrs
    lines.append(
        f"simulated {seconds['simulated_releases']:.3g} releases in {seconds['seconds_simulation']:.1f} s; bound"
        f" {seconds['seconds_bound']:.1f} s, recursion {seconds['seconds_recursion']:.1f} s, law on"
        f" {seconds['law_nodes']} nodes {seconds['seconds_law']:.1f} s"
    )
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """A row per threshold: heat maps of the best noise, and the best noise against recruit for some of leave."""
    names = ("simulation", *THEORIES)
    rows = data.sizes["threshold"]
    figure, axes = plt.subplots(
        rows,
        len(names) + 1,
        figsize=(19, 3.6 * rows),
        layout="constrained",
        squeeze=False,
        width_ratios=[1] * 4 + [1.4],
    )
    low, high = SEARCHED if float(data.bound.min()) < NOISES[0] / 2 else NOISES
    scale = LogNorm(low, high)
    for row, (threshold, part) in zip(axes, data.groupby("threshold"), strict=True):
        for name, ax in zip(names, row, strict=False):
            shown = part[name].squeeze().dropna("leave", how="all").dropna("recruit", how="all")
            image = ax.pcolormesh(shown.recruit, shown.leave, np.maximum(shown, low), norm=scale, rasterized=True)
            ax.set(xlabel="recruit r", ylabel="leave q", title=f"{THEORIES.get(name, name)}\nτ = {threshold:g}")
        figure.colorbar(image, ax=row[len(names) - 1], label="best noise scale γ*")
        draw_lines(part.squeeze("threshold"), row[-1])
    return figure


def draw_lines(part: "xarray.Dataset", ax: plt.Axes) -> None:
    """The best noise against recruit, theory solid and dotted, simulation dashed."""
    styles = {"bound": "-", "simulation": "--", "recursion": ":"}
    for number, leave in enumerate(LINES):
        shown = part.sel(leave=leave, method="nearest")
        for name, style in styles.items():
            label = f"q = {float(shown.leave):.2g}" if name == "bound" else None
            ax.plot(part.recruit, shown[name], style, color=f"C{number}", label=label)
    for name, style in styles.items():
        ax.plot([], [], style, color="0.4", label=name)
    ax.set(yscale="log", xlabel="recruit r", ylabel="best noise scale γ*")
    ax.legend(fontsize="x-small", ncols=2)


def _figure(thresholds: tuple[float, ...]) -> Figure:
    reduced = {"cells": 9, "levels": 30, "trials": 20, "law_every": 4, "law_nodes": 160}
    full = {"cells": 30, "levels": 30, "trials": 50, "law_every": 3, "law_nodes": 160}
    return Figure(
        "Best noise scale of mean estimation over leave and recruit, by simulation and by theory",
        functools.partial(recipe, thresholds),
        draw,
        summary,
        reduced,
        full,
    )


FIGURES = {4: _figure((0.02, 0.05)), 5: _figure((0.01, 0.2, 0.1))}
