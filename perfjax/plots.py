"""Pictures of results. Every plot takes a result and an optional matplotlib axes, and returns the axes."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from perfjax import _check
from perfjax._summary import HIGH, LOW, summary
from perfjax.calibration import Identifiability, Profile
from perfjax.law import PopulationLaw
from perfjax.meanfield import mean_field
from perfjax.reconstruction import ReleaseScan
from perfjax.trajectory import Trajectory
from perfjax.tuning import Optimum, PolicyOptimum, Schedule

__all__ = [
    "plot_error",
    "plot_fan",
    "plot_fit",
    "plot_objective",
    "plot_optimum",
    "plot_policy",
    "plot_population",
    "plot_profile",
    "plot_scan",
    "plot_schedule",
    "plot_series",
    "plot_simulation",
]


def plot_optimum(optimum: Optimum) -> Figure:
    """The objective against noise, and the population over releases, side by side."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plot_objective(optimum, axes[0])
    plot_population(optimum, axes[1])
    return figure


def plot_objective(optimum: Optimum, ax: Axes | None = None, *, points: int = 300, key: Array | None = None) -> Axes:
    """The objective against noise on log axes, with the best noise, no privacy and the noise that theory names.

    That is gamma_c of Theorem 2 for a clipped mean and `outside="shared"`, eps_c of Theorem 1 for randomized response.

    Args:
        optimum: a single result of `tune`.
        ax: where to draw.
        points: noise levels of the curve, between the mechanism's default search bounds.
        key: randomness, for an objective that samples.
    """
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    scenario, mechanism = optimum.scenario, optimum.scenario.mechanism
    noise = jnp.geomspace(*mechanism.noise_bounds, points, dtype=optimum.noise.dtype)
    evaluate = jax.jit(jax.vmap(lambda x: optimum.objective.evaluate(scenario.with_noise(x), key).log_value))
    ax.plot(noise, np.exp(evaluate(noise)), color="C0", label="objective")
    ax.axhline(float(optimum.value_without_privacy), color="C3", linestyle="--", label="no privacy")
    if 0 < float(optimum.noise) < np.inf:
        best = f"best {mechanism.noise_symbol} = {optimum.noise:.4g}"
        ax.plot(float(optimum.noise), float(optimum.value), "o", color="C1", label=best)
    _mark_critical(scenario, ax)
    ax.set(xscale="log", yscale="log", xlabel=f"{mechanism.noise_label} {mechanism.noise_symbol}", ylabel="objective")
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


def plot_schedule(schedule: Schedule) -> Figure:
    """Noise, expected population and error (mean field) of every release, under the schedule and the best constant."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    scenario, mechanism = schedule.scenario, schedule.scenario.mechanism
    runs = {"schedule": scenario, "best constant": scenario.replace_noise(schedule.constant)}
    hidden, logarithmic = False, dict.fromkeys(axes, False)
    for (label, run), style in zip(runs.items(), ("-", "--"), strict=True):
        path = mean_field(run)
        noise = np.asarray(run.noises())
        shown = np.where(noise == mechanism.no_privacy, np.nan, noise)  # which is on no log axis
        hidden |= bool(np.any(np.isnan(shown)))
        for ax, values in zip(axes, (shown, path.population, path.error), strict=True):
            ax.plot(values, style, label=label)
            logarithmic[ax] |= bool(np.any(np.asarray(values) > 0))  # the error of a count without noise is 0
    labels = (
        f"{mechanism.noise_label} {mechanism.noise_symbol}",
        "population (users)",
        f"expected {mechanism.error_unit}",
    )
    for ax, label in zip(axes, labels, strict=True):
        ax.set(xlabel="release", ylabel=label, yscale="log" if logarithmic[ax] else "linear")
    axes[0].legend(fontsize="small", title="no privacy where a line is missing" if hidden else None)
    return figure


def plot_policy(best: PolicyOptimum) -> Figure:
    """The noise of a policy over releases and population, and the law of the population under it."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    scenario, mechanism = best.scenario, best.scenario.mechanism
    who, rounds = scenario.participation, scenario.rounds
    population = np.unique(np.geomspace(max(float(who.floor), 1), float(who.cap), 200).round())
    noise = np.stack([np.asarray(best.policy(population, t)) for t in range(rounds + 1)], axis=1)
    release, without = np.arange(rounds + 1), noise == mechanism.no_privacy
    shown = np.ma.masked_where(without, np.clip(noise, *mechanism.noise_bounds))
    norm = LogNorm(*mechanism.noise_bounds) if np.all(without) else LogNorm()
    image = axes[0].pcolormesh(release, population, shown, norm=norm, rasterized=True)
    if np.any(without):  # which has no place on the scale of the noises
        none = np.ma.masked_where(~without, without)
        axes[0].pcolormesh(release, population, none, cmap=ListedColormap(["C3"]), rasterized=True)
        axes[0].legend(handles=[Patch(color="C3", label="no privacy")], fontsize="small")
    figure.colorbar(image, ax=axes[0], label=f"{mechanism.noise_label} {mechanism.noise_symbol}")
    axes[0].set(xlabel="release", ylabel="population (users)", yscale="log")
    plot_fan(best.law(), axes[1])
    return figure


def plot_simulation(result: Trajectory | PopulationLaw) -> Figure:
    """What becomes of the population, and the error of every release, side by side."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    plot_fan(result, axes[0])
    plot_error(result, axes[1])
    return figure


def plot_fan(result: Trajectory | PopulationLaw, ax: Axes | None = None) -> Axes:
    """The population over releases, its mean and 10-90 % band, with the probability of collapse on a second axis.

    Args:
        result: of `population_law`, `simulate_counts` or `simulate_users`.
        ax: where to draw.

    Raises:
        ValueError: if `result` is neither a law nor the runs of one scenario.
    """
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    shown = summary(result)
    release = np.arange(shown.mean.size)
    band = f"{LOW:.0%} to {HIGH:.0%} of runs"
    ax.fill_between(release, shown.low, shown.high, color="C0", alpha=0.25, linewidth=0, label=band)
    ax.plot(release, shown.mean, color="C0", label="mean population")
    ax.set(xlabel="release", ylabel="population (users)", yscale="log" if np.all(shown.low > 0) else "linear")
    risk = ax.twinx()
    risk.plot(release, shown.collapse_probability, color="C3", linestyle="--")
    risk.set(ylim=(-0.02, 1.02), ylabel="probability of collapse by then")
    ax.plot([], [], color="C3", linestyle="--", label="collapsed by then")  # one legend for both axes
    ax.legend(fontsize="small")
    return ax


def plot_error(result: Trajectory | PopulationLaw, ax: Axes | None = None) -> Axes:
    """The expected error of every release, for the same results as `plot_fan`.

    Args:
        result: as in `plot_fan`.
        ax: where to draw.

    Raises:
        ValueError: as `plot_fan` does.
    """
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    ax.plot(summary(result).expected_error, color="C1")
    ax.set(yscale="log", xlabel="release", ylabel=f"expected {result.scenario.mechanism.error_unit}")
    return ax


def plot_scan(scan: ReleaseScan, ax: Axes | None = None) -> Axes:
    """The bound on some records against the number of releases, with what binds any estimator and what a constant errs.

    Args:
        scan: a single result of `reconstruction.scan_releases`.
        ax: where to draw.

    Raises:
        ValueError: for a batch of scans.
    """
    if scan.bound.ndim > 1:
        raise _check.fail("scan", "be a single result", f"a batch of shape {scan.bound.shape[:-1]}")
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    bound = np.asarray(scan.bound)
    ax.plot(scan.releases, np.where(np.isfinite(bound), bound, np.nan), color="C0", label="bound if unbiased")
    ax.plot(scan.releases, scan.van_trees, color="C2", linestyle=":", label="any estimator, mean over records nearby")
    ax.axhline(float(scan.trivial), color="0.5", linestyle="--", label="always 0, at most")
    if np.isfinite(bound).any():
        ax.plot(
            int(scan.best_releases), float(scan.best_bound), "o", color="C1", label=f"best L = {scan.best_releases}"
        )
    ax.set(yscale="log", xlabel="releases L", ylabel="squared error, summed over the records")
    ax.legend(fontsize="small")
    return ax


def plot_fit(found: Identifiability) -> Figure:
    """The series with the fitted path, and the profile likelihood of every quantity, side by side.

    Args:
        found: of `calibration.identifiability`.
    """
    names = list(found.profiles)
    figure, axes = plt.subplots(1, 1 + len(names), figsize=(4.2 * (1 + len(names)), 3.8), layout="constrained")
    plot_series(found, axes[0])
    for name, ax in zip(names, axes[1:], strict=True):
        plot_profile(found.profiles[name], ax)
    return figure


def plot_series(found: Identifiability, ax: Axes | None = None) -> Axes:
    """The counts of a series, and what each was expected to be given the one before, with a 95 % band.

    Args:
        found: of `calibration.identifiability`.
        ax: where to draw.
    """
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    series = found.fitted.series
    n, round_ = np.asarray(series.population), np.arange(series.rounds + 1)
    at, mean, std = found.fitted.expected_counts()
    ax.plot(round_, n, "o", color="C0", markersize=4, label="counted")
    ax.plot(at, mean, color="C1", label="expected from the count before")
    ax.fill_between(at, mean - 1.96 * std, mean + 1.96 * std, color="C1", alpha=0.25, linewidth=0, label="95 %")
    shown = round_[:: max(1, round_.size // 5)]
    # Labels are the user's: a dollar sign in them is no formula.
    ax.set_xticks(shown, [series.labels[i] for i in shown], fontsize="small", parse_math=False)
    ax.set(xlabel="round", ylabel="population (users)")
    ax.legend(fontsize="small")
    return ax


def plot_profile(profile: Profile, ax: Axes | None = None) -> Axes:
    """A profile likelihood: twice the drop from its maximum, with the level where the interval ends, and the interval.

    Args:
        profile: of `calibration.profiles`.
        ax: where to draw.
    """
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    shown = np.isfinite(profile.drops) & (profile.drops < 4 * profile.cutoff)
    ax.plot(profile.values[shown], profile.drops[shown], ".-", color="C0")
    ax.axhline(profile.cutoff, color="C3", linestyle="--", label=f"{profile.level:.0%}")
    seen = profile.values[shown]
    ax.axvspan(max(profile.low, seen.min()), min(profile.high, seen.max()), color="C0", alpha=0.1, linewidth=0)
    if profile.name == "threshold":
        ax.set_xscale("log")
        ax.tick_params(axis="x", which="both", labelsize="small", labelrotation=30)
    open_ends = [side for side, closed in zip(("below", "above"), profile.closed, strict=True) if not closed]
    title = f"open {' and '.join(open_ends)}" if open_ends else ""
    ax.set(xlabel=profile.name, ylabel="2 (log-likelihood drop)", title=title)
    ax.legend(fontsize="small")
    return ax


def _mark_critical(scenario, ax):
    """The noise that theory names: gamma_c for a clipped mean, eps_c for randomized response."""
    critical, mechanism = scenario.critical_noise(), scenario.mechanism
    if critical is None or not critical.holds:
        return
    low, high = mechanism.noise_bounds
    if low < float(critical.value) < high:
        name = f"{mechanism.noise_symbol}_c ({critical.theorem})"
        ax.axvline(float(critical.value), color="0.5", linestyle=":", label=f"{name} = {critical.value:.4g}")
