"""Figures of count privacy: budgets by group size, errors, the shift, noises, and groups that grow or die out."""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float

from perfjax import count_privacy
from perfjax.count_privacy._release import AbstractCountRelease
from perfjax.figures._figure import Figure
from perfjax.law import population_law
from perfjax.leakage import LikelihoodRatioAbove
from perfjax.meanfield import mean_field
from perfjax.mechanisms import ShiftedLogCount
from perfjax.participation import Participation
from perfjax.scenario import Scenario
from perfjax.sweeps import sweep

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "budgets", "errors", "noises", "shift", "trajectories"]

TOLERANCE = 0.1
SHIFTS = (0.01, 1.0)
WEIGHTED = 20  # group sizes, all with the same weight
SHOWN_STARTS = 9


def _mechanisms(tolerance: float) -> dict[str, AbstractCountRelease]:
    """The designs that are compared, by what the legend calls them."""
    made = {f"log-Gaussian, c = {c:g}": count_privacy.design("log-gaussian", tolerance, shift=c) for c in SHIFTS}
    made["log-Airy, c = 1"] = count_privacy.design("log-airy", tolerance)
    return made | {"spacing": count_privacy.design("spacing", tolerance)}


def _whole_sizes(levels: int, largest: float) -> np.ndarray:
    return np.unique(np.geomspace(1, largest, levels).round())


def budgets(*, levels: int, progress: bool) -> "xarray.Dataset":
    """v(n) of each mechanism, and all lower bounds on it."""
    import xarray

    del progress
    sizes = _whole_sizes(levels, 1e4)
    made = _mechanisms(TOLERANCE)
    bounds = [count_privacy.best_lower_bound(TOLERANCE, n - 1) for n in sizes]
    return xarray.Dataset(
        {
            "budget": (("mechanism", "size"), [m.budget(sizes) for m in made.values()], {"units": "zCDP rho"}),
            "bound": (("kind", "size"), np.asarray(bounds, float).T, {"units": "zCDP rho"}),
        },
        coords={"mechanism": list(made), "kind": list(count_privacy.LowerBounds._fields), "size": sizes},
    ).assign_attrs(tolerance=TOLERANCE)


def _say_budgets(data):
    best = data.bound.max("kind")
    lines = [f"tolerance {data.attrs['tolerance']:g}: budget of a member, and how many times the best lower bound"]
    for name in data.mechanism.values:
        shown = data.budget.sel(mechanism=name)
        parts = [
            f"n = {n:.0f}: {float(shown.sel(size=n)):.3g} ({float((shown / best).sel(size=n)):.3g})"
            for n in _some(data)
        ]
        lines.append(f"  {name}: {', '.join(parts)}")
    return lines


def _some(data):
    sizes = data.size.values
    return sizes[[0, len(sizes) // 2, -1]]


def _draw_budgets(data):
    figure, ax = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for name in data.mechanism.values:
        ax.plot(data["size"], data.budget.sel(mechanism=name), label=name)
    for kind in data.kind.values:
        bound = data.bound.sel(kind=kind)
        ax.plot(data["size"], bound.where(bound > 0), "--", linewidth=1, label=f"bound: {kind.replace('_', ' ')}")
    title = f"mean error below {data.attrs['tolerance']:g} of the count"
    ax.set(xscale="log", yscale="log", xlabel="group size n", ylabel="budget v(n) of a member (zCDP)", title=title)
    ax.legend(fontsize="small")
    return figure


def errors(*, levels: int, progress: bool) -> "xarray.Dataset":
    """E|released - n| / max(n, 1) of each mechanism, and of the log-Gaussian before clipping, for two tolerances."""
    import xarray

    del progress
    counts = np.append(0, _whole_sizes(levels, 1e4))
    scale = np.maximum(counts, 1)
    tolerances = (0.25, 0.9)
    names = ("log-Gaussian, before clipping", "log-Gaussian", "log-Gaussian, clip-aware", "log-Airy", "spacing")
    found = np.full((2, len(names), counts.size), np.nan)
    for row, r in zip(found, tolerances, strict=True):
        aware = count_privacy.LogGaussian(count_privacy.clip_aware_sigma(r, 1.0), 1.0)
        row[0] = (counts + 1) * r / 2 / scale
        for place, made in ((1, "log-gaussian"), (3, "log-airy"), (4, "spacing")):
            if made != "spacing" or r <= count_privacy.LARGEST_TOLERANCE:
                row[place] = count_privacy.design(made, r).error(counts) / scale
        row[2] = aware.error(counts) / scale
    return xarray.Dataset(
        {"error": (("allowed", "mechanism", "count"), found, {"units": "relative error"})},
        coords={"allowed": list(tolerances), "mechanism": list(names), "count": counts},
    )


def _say_errors(data):
    lines = []
    for r in data.allowed.values:
        worst = data.error.sel(allowed=r).max("count")
        parts = [
            f"{name} {float(worst.sel(mechanism=name)):.4g}"
            for name in data.mechanism.values
            if worst.sel(mechanism=name) > 0
        ]
        lines.append(f"tolerance {r:g}: greatest relative error: {'; '.join(parts)}")
    return lines


def _draw_errors(data):
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for ax, r in zip(axes, data.allowed.values, strict=True):
        for name in data.mechanism.values:
            style = "--" if "before" in name else "-"
            ax.plot(data["count"] + 1, data.error.sel(allowed=r, mechanism=name), style, label=name)
        ax.axhline(r, color="0.5", linewidth=0.8)
        ax.set(
            xscale="log",
            xlabel="count n, plus 1",
            ylabel="E|released - n| / max(n, 1)",
            title=f"tolerance {r:g}, c = 1",
        )
    axes[0].legend(fontsize="small")
    return figure


def shift(*, levels: int, progress: bool) -> "xarray.Dataset":
    """v(n) of the log-Gaussian over the shift c, and their mean over sizes, whose minimum is interior."""
    import xarray

    del progress
    r, sizes = 0.25, np.asarray([1.0, 2, 10, 100])
    shifts = np.geomspace(1e-3, 1e3, levels)
    weights = jnp.ones(WEIGHTED)
    mean = jax.jit(jax.vmap(lambda c: count_privacy.weighted_budget(c, weights, jnp.asarray(r, c.dtype))))(
        jnp.asarray(shifts)
    )
    budget = count_privacy.edge_budget(sizes[:, None], count_privacy.log_gaussian_sigma(r, shifts), shifts)
    best = count_privacy.best_shift(weights, r)
    spaced = count_privacy.design("spacing", r).budget(sizes)
    return xarray.Dataset(
        {
            "budget": (("size", "shift"), np.asarray(budget), {"units": "zCDP rho"}),
            "mean": ("shift", np.asarray(mean), {"units": "zCDP rho"}),
            "spacing": ("size", np.asarray(spaced), {"units": "zCDP rho"}),
        },
        coords={"size": sizes, "shift": shifts},
    ).assign_attrs(tolerance=r, best_shift=float(best), weighted=WEIGHTED)


def _say_shift(data):
    lines = [f"c = {data.attrs['best_shift']:.4g} has the least mean budget over sizes 1 to {data.attrs['weighted']}"]
    for n in data["size"].values:
        over = data.budget.sel(size=n)
        lines.append(
            f"  n = {n:.0f}: least {float(over.min()):.4g} at c = {float(over.idxmin()):.3g};"
            f" spacing {float(data.spacing.sel(size=n)):.4g}"
        )
    return lines


def _draw_shift(data):
    figure, ax = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for number, n in enumerate(data["size"].values):
        ax.plot(data["shift"], data.budget.sel(size=n), color=f"C{number}", label=f"v({n:.0f})")
        ax.axhline(float(data.spacing.sel(size=n)), color=f"C{number}", linestyle=":", linewidth=1)
    ax.plot(data["shift"], data["mean"], color="0.2", linewidth=2, label=f"mean over 1 to {data.attrs['weighted']}")
    ax.axvline(data.attrs["best_shift"], color="0.5", linestyle="--", linewidth=0.8)
    ax.plot([], [], ":", color="0.4", label="spacing mechanism")
    title = f"tolerance {data.attrs['tolerance']:g}"
    ax.set(xscale="log", yscale="log", xlabel="shift c", ylabel="budget (zCDP)", title=title)
    ax.legend(fontsize="small")
    return figure


def _log_gentle(x):
    return -(jnp.abs(x) ** 1.75) - math.log(2 * math.gamma(1 + 1 / 1.75))


def _log_cubic(x):
    return -(jnp.abs(x) ** 3) - math.log(2 * math.gamma(4 / 3))


DENSITIES = {
    "Airy": (count_privacy.airy_log_density, count_privacy.MEAN_ABSOLUTE),
    "normal": (jax.scipy.stats.norm.logpdf, math.sqrt(2 / math.pi)),
    "exp(-|x|^1.75)": (_log_gentle, math.gamma(2 / 1.75) / math.gamma(1 / 1.75)),
    "Laplace": (jax.scipy.stats.laplace.logpdf, 1.0),
    "exp(-|x|^3)": (_log_cubic, math.gamma(2 / 3) / math.gamma(1 / 3)),
}
"""Log densities, and the mean absolute value of each."""


def noises(*, levels: int, progress: bool) -> "xarray.Dataset":
    """D_alpha / (alpha s^2) of noises with E|X| = 1 over the order alpha, for a small shift s and a large one."""
    import xarray

    del progress
    orders, shifts = np.geomspace(1.01, 1e5, levels), np.asarray([0.01, 1.0])
    scaled = [
        count_privacy.shift_renyi(log_density, shifts[:, None] * mean, orders) / orders / shifts[:, None] ** 2
        for log_density, mean in DENSITIES.values()
    ]
    return xarray.Dataset(
        {"cost": (("noise", "shift", "order"), np.asarray(scaled), {"long_name": "D_alpha / (alpha s^2) at E|X| = 1"})},
        coords={"noise": list(DENSITIES), "shift": shifts, "order": orders},
    )


def _say_noises(data):
    lines = ["cost of a shift of 0.01, D_alpha / (alpha s^2), at the least and at the largest order"]
    for noise in data.noise.values:
        cost = data.cost.sel(noise=noise).isel(shift=0)
        lines.append(f"  {noise}: {float(cost[0]):.4f}, {float(cost[-1]):.4g}")
    return lines


def _draw_noises(data):
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for ax, s in zip(axes, data["shift"].values, strict=True):
        for noise in data.noise.values:
            ax.plot(data.order, data.cost.sel(noise=noise, shift=s), label=noise)
        ax.axhline(count_privacy.BEST_COEFFICIENT, color="0.5", linewidth=0.8, linestyle="--")
        ax.set(xscale="log", yscale="log", xlabel="order α", ylabel="Dα / (α s²), E|X| = 1", title=f"shift s = {s:g}")
        ax.set_ylim(1e-3, 10)
    axes[0].legend(fontsize="small")
    return figure


def _group(population: float, *, cap: float) -> Scenario:
    return Scenario(
        ShiftedLogCount.from_tolerance(0.2, 1.0),
        LikelihoodRatioAbove(0.2),
        Participation(0.3, 0.05, cap=cap),
        population=population,
        rounds=40,
    )


def trajectories(*, levels: int, progress: bool) -> "xarray.Dataset":
    """Expected paths of groups of several sizes, and the law of each: whether it is alive at the last release."""
    import xarray

    scenario = _group(50.0, cap=400.0)
    given = scenario.leaves()
    star = count_privacy.unstable_count(
        given["leave"], given["recruit"], given["threshold"], sigma=given["sigma"], shift=given["shift"]
    )
    starts = np.geomspace(5, 200, levels)
    paths = sweep(mean_field, scenario, {"population": starts}, fields=["leak_probability"], progress=progress)
    fates = sweep(_fate, scenario, {"population": starts}, progress=progress)
    population = jax.vmap(lambda n: mean_field(scenario.replace(population=n)).population)(
        jnp.asarray(starts, star.dtype)
    )
    return xarray.Dataset(
        {
            "population": (("start", "release"), np.asarray(population), {"units": "users"}),
            "leak_probability": (("start", "release"), paths.leak_probability.values, {"units": "1"}),
            "expected": ("start", fates.expected.values, {"units": "users", "long_name": "mean by the law"}),
            "alive": ("start", fates.alive.values, {"units": "1"}),
        },
        coords={"start": starts, "release": np.arange(scenario.rounds + 1)},
    ).assign_attrs(unstable_count=float(star))


def _fate(scenario: Scenario) -> dict[str, Float[Array, ""]]:
    law = population_law(scenario)
    return {"expected": law.mean[-1], "alive": 1 - law.collapse_probability[-1]}


def _say_trajectories(data):
    star = data.attrs["unstable_count"]
    last = data.population.isel(release=-1)
    grown = data.start.values[(last > data.start).values]
    return [
        f"unstable count n* = {star:.4g}: of the groups shown those of {grown.min():.3g} and more grow in expectation",
        f"alive after {int(data.release[-1])} releases: {float(data.alive[0]):.1%} of groups of"
        f" {data.start.values[0]:.0f}, {float(data.alive[-1]):.1%} of groups of {data.start.values[-1]:.0f}",
    ]


def _draw_trajectories(data):
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    star = data.attrs["unstable_count"]
    for index in np.unique(np.linspace(0, data.start.size - 1, SHOWN_STARTS).round().astype(int)):
        start = float(data.start[index])
        axes[0].plot(data.release, data.population[index], color="C2" if start > star else "C3")
    axes[0].axhline(star, color="0.3", linestyle="--", linewidth=1, label=f"n* = {star:.3g}")
    axes[0].set(yscale="log", xlabel="release", ylabel="expected group size (mean field)")
    axes[0].legend(fontsize="small")
    axes[1].plot(data.start, data.alive, color="C0", label="alive at the last release (law)")
    axes[1].axvline(star, color="0.3", linestyle="--", linewidth=1)
    axes[1].set(xscale="log", xlabel="group size at release 0", ylabel="probability", ylim=(-0.02, 1.02))
    axes[1].legend(fontsize="small")
    return figure


FIGURES = {
    "groups-1": Figure(
        "Budget against group size, and what is possible",
        budgets,
        _draw_budgets,
        _say_budgets,
        {"levels": 30},
        {"levels": 120},
    ),
    "groups-2": Figure("Error against count", errors, _draw_errors, _say_errors, {"levels": 40}, {"levels": 200}),
    "groups-3": Figure(
        "The shift: small groups against large ones", shift, _draw_shift, _say_shift, {"levels": 60}, {"levels": 300}
    ),
    "groups-4": Figure(
        "What noises cost at each order", noises, _draw_noises, _say_noises, {"levels": 15}, {"levels": 60}
    ),
    "groups-5": Figure(
        "Groups that grow and groups that die out",
        trajectories,
        _draw_trajectories,
        _say_trajectories,
        {"levels": 12},
        {"levels": 40},
    ),
}
