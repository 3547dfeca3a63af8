"""Pictures of results. Every plot takes a result and an optional matplotlib axes, and returns the axes."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perfjax import theorems
from perfjax.meanfield import mean_field
from perfjax.mechanisms import GaussianMean
from perfjax.tuning import Optimum

__all__ = ["plot_objective", "plot_optimum", "plot_population"]


def plot_optimum(optimum: Optimum) -> Figure:
    """The objective against noise, and the population over releases, side by side."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plot_objective(optimum, axes[0])
    plot_population(optimum, axes[1])
    return figure


def plot_objective(optimum: Optimum, ax: Axes | None = None, *, points: int = 300) -> Axes:
    """The objective against noise on log axes, with the best noise, no privacy and (for a clipped mean) gamma_c."""
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    scenario, mechanism = optimum.scenario, optimum.scenario.mechanism
    noise = jnp.geomspace(*mechanism.noise_bounds, points, dtype=optimum.noise.dtype)
    evaluate = jax.jit(jax.vmap(lambda x: optimum.objective.evaluate(scenario.with_noise(x)).log_value))
    ax.plot(noise, np.exp(evaluate(noise)), color="C0", label="objective")
    ax.axhline(float(optimum.value_without_privacy), color="C3", linestyle="--", label="no privacy")
    if 0 < float(optimum.noise) < np.inf:
        best = f"best {mechanism.noise_symbol} = {optimum.noise:.4g}"
        ax.plot(float(optimum.noise), float(optimum.value), "o", color="C1", label=best)
    _mark_critical(scenario, ax)
    ax.set(xscale="log", yscale="log", xlabel=f"{mechanism.noise_name} {mechanism.noise_symbol}", ylabel="objective")
    ax.legend(fontsize="small")
    return ax


def plot_population(optimum: Optimum, ax: Axes | None = None) -> Axes:
    """The expected population (mean field) over releases, under the best noise and without privacy."""
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    runs = {"best noise": optimum.scenario, "no privacy": optimum.scenario.without_privacy()}
    for (label, scenario), color in zip(runs.items(), ("C1", "C3"), strict=True):
        population = mean_field(scenario).population
        ax.plot(population, color=color, linestyle="--" if label == "no privacy" else "-", label=label)
    ax.set(yscale="log", xlabel="release", ylabel="population (users)")
    ax.legend(fontsize="small")
    return ax


def _mark_critical(scenario, ax):
    """The noise that theory names: gamma_c for a clipped mean, eps_c for randomized response."""
    who = scenario.participation
    if isinstance(scenario.mechanism, GaussianMean):
        if scenario.mechanism.clip_radius is None:
            return
        value = theorems.critical_noise_scale(
            who.leave,
            who.recruit,
            scenario.leakage.threshold,
            clip_radius=scenario.mechanism.clip_radius,
            population=scenario.population,
        )
        name = "γ_c (Theorem 2)"
    else:
        value = theorems.critical_epsilon(who.leave, who.recruit, recruiters=who.recruiters)
        name = "ε_c (Theorem 1)"
    low, high = scenario.mechanism.noise_bounds
    if low < float(value) < high:
        ax.axvline(float(value), color="0.5", linestyle=":", label=f"{name} = {value:.4g}")
