"""Figures 1 and 6: error and population of randomized response by release, for four local budgets in two regimes."""

import functools
from typing import TYPE_CHECKING

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Key

from perfjax.figures._figure import Figure
from perfjax.figures._published import key, randomized_response, simulated
from perfjax.montecarlo import runs
from perfjax.scenario import Scenario
from perfjax.sweeps import sweep

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "draw", "means", "recipe", "summary"]

REGIMES = {"more leave than recruit": (0.6, 0.3), "more recruit than leave": (0.3, 0.6)}  # leave, recruit
EPSILONS = (0.01, 0.1, 1.0, 5.0)


def recipe(number: int, recruiters: str, *, trials: int, window: int, progress: bool) -> "xarray.Dataset":
    """Mean error and population of every release.

    Args:
        number: the figure.
        recruiters: "spared" or "everyone".
        trials: simulated runs.
        window: releases over which the error is averaged, the last of them being the one shown.
        progress: show a bar.
    """
    import xarray

    scenario = randomized_response(recruiters=recruiters, clip_estimate=True)
    leave, recruit = (np.asarray(values) for values in zip(*REGIMES.values(), strict=True))
    over = {
        "leave": np.repeat(leave, len(EPSILONS)),
        "recruit": np.repeat(recruit, len(EPSILONS)),
        "epsilon": np.tile(EPSILONS, len(REGIMES)),
    }
    run = functools.partial(means, trials=trials)
    found = sweep(run, simulated(scenario), over, pairing="zip", key=key(number), progress=progress)
    shape = len(REGIMES), len(EPSILONS), scenario.rounds + 1
    error, population, low, high = (
        found[name].values.reshape(shape) for name in ("error", "population", "low", "high")
    )
    dims = ("regime", "epsilon", "release")
    data = xarray.Dataset(
        {
            "error": (dims, error, {"units": "squared error"}),
            "population": (dims, population, {"units": "users"}),
            "population_low": (dims, low, {"units": "users", "long_name": "10 % of runs have fewer"}),
            "population_high": (dims, high, {"units": "users", "long_name": "10 % of runs have more"}),
        },
        coords={"regime": list(REGIMES), "epsilon": list(EPSILONS), "release": np.arange(shape[-1])},
    ).assign_coords(leave=("regime", leave), recruit=("regime", recruit))
    smooth = data.error.rolling(release=window, min_periods=1).mean()
    data["moving_error"] = smooth.assign_attrs(units="squared error", window=window)
    return data.assign_attrs(trials=trials, recruiters=recruiters)


def means(scenario: Scenario, *, key: Key[Array, ""], trials: int) -> dict[str, Float[Array, " releases"]]:
    """Mean realised error and mean population of every release, and where 10 % and 90 % of the runs are."""
    paths = runs(scenario, key, trials)
    low, high = jnp.quantile(paths.population, jnp.asarray([0.1, 0.9], paths.population.dtype), axis=0)
    mean = {name: jnp.mean(getattr(paths, name), axis=0) for name in ("error", "population")}
    return mean | {"low": low, "high": high}


def summary(data: "xarray.Dataset") -> list[str]:
    """The last release of each regime and budget."""
    last = data.isel(release=-1)
    lines = []
    for regime in data.regime.values:
        part = last.sel(regime=regime)
        lines.append(f"leave {float(part.leave):g}, recruit {float(part.recruit):g} ({regime}), last release:")
        for epsilon in data.epsilon.values:
            shown = part.sel(epsilon=epsilon)
            lines.append(
                f"  local epsilon {epsilon:<5g} {float(shown.population):8.0f} users on average,"
                f" error {float(shown.moving_error):.3g}"
            )
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """A row per regime: moving average of the error, and population with its 10-90 % band."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    window = data.moving_error.attrs["window"]
    for (left, right), (_, part) in zip(axes, data.groupby("regime"), strict=True):
        part = part.squeeze("regime")
        for number, epsilon in enumerate(data.epsilon.values):
            shown, color = part.sel(epsilon=epsilon), f"C{number}"
            left.plot(data.release, shown.moving_error, color=color, label=f"ε = {epsilon:g}")
            right.plot(data.release, shown.population, color=color, label=f"ε = {epsilon:g}")
            right.fill_between(
                data.release, shown.population_low, shown.population_high, color=color, alpha=0.2, linewidth=0
            )
        title = f"leave {float(part.leave):g}, recruit {float(part.recruit):g}"
        left.set(yscale="log", xlabel="release", ylabel=f"squared error (mean of {window} releases)", title=title)
        right.set(yscale="log", xlabel="release", ylabel="population (users)", title=title)
        left.legend(title="local budget", fontsize="small")
    return figure


def _figure(number: int, recruiters: str, who: str) -> Figure:
    return Figure(
        f"Error and population of randomized response over the releases, {who} recruit",
        functools.partial(recipe, number, recruiters),
        draw,
        summary,
        {"trials": 50, "window": 10},
        {"trials": 50, "window": 10},
    )


FIGURES = {1: _figure(1, "spared", "spared users"), 6: _figure(6, "everyone", "all users")}
