"""Figure 3: who is leaked by a release with how much noise, and what becomes of the population, theory and simulation.

Theory comes twice: with the noise variance of the likelihood ratio shared, as the paper has it, and recomputed, as its
simulations have it. Growth is that of release 0, C(gamma) = E[n_1] / n_0: later releases of the published average are
pulled to 1 by the cap.
"""

import functools
from typing import TYPE_CHECKING

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, Float, Key

from perfjax.figures._figure import Figure
from perfjax.figures._published import key, mean_estimation, simulated
from perfjax.leakage import split
from perfjax.montecarlo import runs, simulate_users
from perfjax.objectives import growth_factor
from perfjax.scenario import Scenario
from perfjax.sweeps import sweep

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "draw", "growth", "growth_numbers", "leak", "leak_numbers", "leaked_share", "recipe", "summary"]

FEW = 100  # users, for the leak probability
REGIMES = {"recruits prevail": (0.11, 0.52), "departures prevail": (0.45, 0.11)}  # leave, recruit
THRESHOLDS = 0.01, 0.2  # ends of the axis of leak probabilities
GROWTH_THRESHOLDS = (0.02, 0.05)
LEAK_NOISES = (0.5, 2.0, 5.0)  # for the leak probability; the paper does not name its own
NOISES = 0.2, 20.0
OUTSIDE = ("shared", "recomputed")


def recipe(*, thresholds: int, levels: int, leak_trials: int, trials: int, progress: bool) -> "xarray.Dataset":
    """Leak probability against threshold, and growth against noise, each with the standard error of the simulation.

    Args:
        thresholds: values of tau, evenly spaced in the logarithm.
        levels: noise scales of the growth, evenly spaced in the logarithm.
        leak_trials: releases simulated record by record for the leak probability.
        trials: releases simulated by counting for the growth.
        progress: show bars.
    """
    leaks = leak_numbers(np.geomspace(*THRESHOLDS, thresholds), leak_trials, progress)
    return leaks.merge(growth_numbers(np.geomspace(*NOISES, levels), trials, progress)).assign_attrs(
        leak_population=FEW, growth_population=1000, leak_trials=leak_trials, trials=trials
    )


def leak_numbers(thresholds: np.ndarray, trials: int, progress: bool) -> "xarray.Dataset":
    """P(leaked) among 100 users, against threshold and noise."""
    import xarray

    over = {"noise_scale": LEAK_NOISES, "threshold": thresholds}
    scenario = mean_estimation(rounds=1, population=FEW, cap=FEW)
    theory = [sweep(leak, scenario.replace(outside=outside), over).value.values for outside in OUTSIDE]
    process = simulated(scenario.replace(outside="recomputed"))
    run = functools.partial(leaked_share, trials=trials)
    found = sweep(run, process, over, key=key(3), progress=progress)
    dims = ("leak_noise", "threshold")
    return xarray.Dataset(
        {
            "leak_probability": (("outside", *dims), np.stack(theory), {"units": "1"}),
            "leak_simulated": (dims, found.mean_.values, {"units": "1"}),
            "leak_standard_error": (dims, found.error.values, {"units": "1"}),
        },
        coords={"outside": list(OUTSIDE), "leak_noise": list(LEAK_NOISES), "threshold": thresholds},
    )


def growth_numbers(noises: np.ndarray, trials: int, progress: bool) -> "xarray.Dataset":
    """C(gamma) in both regimes, for two thresholds."""
    import xarray

    leave, recruit = (np.asarray(values) for values in zip(*REGIMES.values(), strict=True))
    scenario = mean_estimation(rounds=1)
    axes = {"threshold": np.asarray(GROWTH_THRESHOLDS), "noise_scale": noises}
    over = {"growth_threshold": axes["threshold"], "noise_scale": noises}
    theory, mean, error = [], [], []
    run = functools.partial(growth, trials=trials)
    for number, (q, r) in enumerate(REGIMES.values()):
        regime = scenario.replace(leave=q, recruit=r)
        alike = [regime.replace(outside=outside) for outside in OUTSIDE]
        theory.append([sweep(growth_factor, one, axes).value.values for one in alike])
        found = sweep(run, simulated(alike[1]), axes, key=key(30 + number), progress=progress)
        mean.append(found.mean_.values)
        error.append(found.error.values)
    dims = ("regime", *over)
    return xarray.Dataset(
        {
            "growth": (("regime", "outside", *over), np.asarray(theory), {"units": "1"}),
            "growth_simulated": (dims, np.stack(mean), {"units": "1"}),
            "growth_standard_error": (dims, np.stack(error), {"units": "1"}),
        },
        coords=over | {"outside": list(OUTSIDE), "regime": list(REGIMES)},
    ).assign_coords(leave=("regime", leave), recruit=("regime", recruit))


def leak(scenario: Scenario) -> Float[Array, ""]:
    """P(leaked) at release 0."""
    return split(scenario.mechanism, scenario.leakage, scenario.population, scenario.mechanism.noise).leaked


def leaked_share(scenario: Scenario, *, key: Key[Array, ""], trials: int) -> dict[str, Float[Array, ""]]:
    """The share of users leaked by release 0, record by record."""
    return _averaged(simulate_users(scenario, key=key, trials=trials).leak_probability[:, 0])


def growth(scenario: Scenario, *, key: Key[Array, ""], trials: int) -> dict[str, Float[Array, ""]]:
    """n_1 / n_0."""
    return _averaged(runs(scenario, key, trials).population[:, 1] / scenario.population)


def _averaged(samples):
    spread = jnp.sqrt(jnp.var(samples, ddof=1) / samples.size)
    return {"mean_": jnp.mean(samples), "error": spread}


def summary(data: "xarray.Dataset") -> list[str]:
    """How far theory is from simulation, and how much noise growth takes."""
    lines = []
    for outside in OUTSIDE:
        gap = np.abs(data.leak_probability.sel(outside=outside) - data.leak_simulated)
        lines.append(
            f"leak probability, variance {outside}: at most {float(gap.max()):.4f} from the simulation,"
            f" whose standard error is at most {float(data.leak_standard_error.max()):.4f}"
        )
    gap = np.abs(data.growth - data.growth_simulated)
    for outside in OUTSIDE:
        lines.append(
            f"growth, variance {outside}: at most {float(gap.sel(outside=outside).max()):.4f} from the simulation,"
            f" whose standard error is at most {float(data.growth_standard_error.max()):.4f}"
        )
    for _, part in data.growth.sel(outside="shared").stack(line=("regime", "growth_threshold")).groupby("line"):
        grows = part.noise_scale.values[np.squeeze(part.values) > 1]
        when = f"for noise of {grows.min():.3g} and more" if grows.size else "for no noise shown"
        lines.append(
            f"leave {float(part.leave.squeeze()):g}, recruit {float(part.recruit.squeeze()):g}, threshold"
            f" {float(part.growth_threshold.squeeze()):g}: the population grows {when}"
        )
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """Leak probability against threshold, and growth against noise in both regimes between 1 - q and 1 + r."""
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.5), layout="constrained")
    for number, noise in enumerate(data.leak_noise.values):
        shown = data.sel(leak_noise=noise)
        found = shown.leak_probability, shown.leak_simulated, shown.leak_standard_error
        _compare(axes[0], data.threshold, *found, color=f"C{number}", label=f"γ = {noise:g}")
    axes[0].set(xscale="log", xlabel="threshold τ", ylabel="leak probability", title=f"{FEW} users")
    for ax, regime in zip(axes[1:], data.regime.values, strict=True):
        _draw_growth(data.sel(regime=regime), ax)
    for ax in axes:
        ax.plot([], [], "-", color="0.4", label="theory, variance shared")
        ax.plot([], [], ":", color="0.4", label="theory, variance recomputed")
        ax.plot([], [], ".", color="0.4", label="simulation, ± 2 standard errors")
        ax.legend(fontsize="x-small")
    return figure


def _compare(ax, x, theory, simulated, standard_error, *, color, label):
    """Both theories as lines, and the simulation as points with two standard errors."""
    for outside, style in zip(OUTSIDE, ("-", ":"), strict=True):
        ax.plot(x, theory.sel(outside=outside), style, color=color)
    ax.errorbar(x, simulated, 2 * standard_error, fmt=".", color=color, label=label)


def _draw_growth(part, ax):
    for number, threshold in enumerate(part.growth_threshold.values):
        shown = part.sel(growth_threshold=threshold)
        found = shown.growth, shown.growth_simulated, shown.growth_standard_error
        _compare(ax, part.noise_scale, *found, color=f"C{number}", label=f"τ = {threshold:g}")
    for level in (1 - part.leave, 1 + part.recruit):
        ax.axhline(float(level), color="0.5", linewidth=0.8, linestyle="--")
    ax.axhline(1, color="0.8", linewidth=0.8)
    title = f"leave {float(part.leave):g}, recruit {float(part.recruit):g}: from 1 - q to 1 + r"
    ax.set(xscale="log", xlabel="noise scale γ", ylabel="growth C(γ)", title=title)


FIGURES = {
    3: Figure(
        "Leak probability against threshold, and growth against noise",
        recipe,
        draw,
        summary,
        {"thresholds": 9, "levels": 20, "leak_trials": 400, "trials": 200},
        {"thresholds": 20, "levels": 30, "leak_trials": 2000, "trials": 1000},
    )
}
