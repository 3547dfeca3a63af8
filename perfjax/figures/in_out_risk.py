"""Figure 1 of the paper on reconstruction: the risk of a labelled record, which no number of releases about it lowers.

Half of L means hold the target, half do not, under one budget. Left: basic composition. Middle: the same geometry
under other accountants, which are flat. Right: the error of the best estimate in simulated releases. Beyond the paper:
the epsilon that the transcript of basic composition really spends, which falls, and with it the precision.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from perfjax import accounting, reconstruction
from perfjax.figures._figure import Figure
from perfjax.figures._published import key

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "draw", "recipe", "simulated_risk", "summary"]

DELTA = 1e-5
WIDTH = 1.0  # records lie in [-1/2, 1/2]
EPSILONS = (0.5, 1.0, 2.0)
EPSILON = 1.0  # of the comparison of accountants and of the simulation
BACKGROUND = 50
ORDER = 64.0  # of the Rényi accountant
ACCOUNTANTS = {
    "basic": "basic composition",
    "zcdp": "zCDP",
    "rdp": f"Rényi DP, order {ORDER:g}",
    "gdp": "Gaussian DP (exact)",
}


def recipe(*, most: int, trials: int, progress: bool) -> "xarray.Dataset":
    """The risk against the number of releases.

    Args:
        most: greatest number of releases; all even numbers up to it are taken.
        trials: simulated transcripts for each.
        progress: not used: it is a matter of seconds.
    """
    import xarray

    del progress
    releases = np.arange(2, most + 1, 2)
    count = jnp.asarray(releases, float)
    basic = [reconstruction.balanced_risk(_kappa(count, epsilon, "basic"), count, width=WIDTH) for epsilon in EPSILONS]
    kappas = {name: _kappa(count, EPSILON, name) for name in ACCOUNTANTS}
    risks = [reconstruction.balanced_risk(kappa, count, width=WIDTH) for kappa in kappas.values()]
    errors = simulated_risk(key(11), releases, kappas["basic"], trials)
    squared = {"units": "squared units of the records"}
    data = xarray.Dataset(
        {
            "basic_risk": (("epsilon", "releases"), np.stack(basic), squared),
            "risk": (("accountant", "releases"), np.stack(risks), squared),
            "simulated": ("releases", errors.mean(axis=1), squared),
            "standard_error": ("releases", errors.std(axis=1, ddof=1) / np.sqrt(trials), squared),
            "effective_epsilon": (
                ("accountant", "releases"),
                np.stack(
                    [
                        accounting.effective_epsilon(kappa=k, delta=DELTA, joint_sensitivity=count)
                        for k in kappas.values()
                    ]
                ),
            ),
        },
        coords={"epsilon": list(EPSILONS), "accountant": list(ACCOUNTANTS), "releases": releases},
    )
    return data.assign_attrs(delta=DELTA, trials=trials, trivial=WIDTH**2 / 4, background=BACKGROUND)


def _kappa(releases, epsilon, accountant):
    order = ORDER if accountant == "rdp" else None
    return accounting.kappa(releases=releases, epsilon=epsilon, delta=DELTA, accountant=accountant, order=order)


def simulated_risk(key: jax.Array, releases: np.ndarray, kappa: jax.Array, trials: int) -> np.ndarray:
    """Squared errors of the best estimate of a record from L noisy means, by number of releases and trial."""
    most = int(releases.max())

    @jax.jit
    def errors(number, total, kappa):
        """From actual records and means: half of them with the target, half without."""
        here = jax.random.fold_in(key, number)
        of_records, of_noise = jax.random.split(here)
        records = WIDTH * (jax.random.uniform(of_records, (trials, BACKGROUND + 1), float) - 0.5)
        noise = jnp.sqrt(kappa) * WIDTH * jax.random.normal(of_noise, (2, trials, most // 2), float)
        mine = jnp.where(jnp.arange(most // 2, dtype=kappa.dtype) < total / 2, 2 / total, 0.0)
        sums = records.sum(axis=1), records[:, 1:].sum(axis=1)
        counts = BACKGROUND + 1.0, float(BACKGROUND)
        means = [(s + (w @ mine)) / n for s, w, n in zip(sums, noise, counts, strict=True)]
        estimate = reconstruction.in_out_estimate(*means, float(BACKGROUND))
        return (estimate - records[:, 0]) ** 2

    return np.stack([errors(k, float(total), kappa[k]) for k, total in enumerate(releases)])


def summary(data: "xarray.Dataset") -> list[str]:
    """How each accountant's risk goes with the number of releases, and whether the simulation agrees."""
    first, last = int(data.releases[0]), int(data.releases[-1])
    lines = []
    for name, meaning in ACCOUNTANTS.items():
        risk, spent = data.risk.sel(accountant=name).values, data.effective_epsilon.sel(accountant=name).values
        lines.append(
            f"{meaning:24s} risk {risk[0]:8.2f} with {first} releases, {risk[-1]:8.2f} with {last}; the transcript"
            f" spends central epsilon {spent[0]:.3g} and {spent[-1]:.3g}"
        )
    away = np.abs(data.simulated - data.risk.sel(accountant="basic")) / data.standard_error
    lines.append(
        f"simulated from {data.attrs['trials']} transcripts each: within {float(away.max()):.1f} standard errors of"
        f" the bound; always answering the centre has at most {data.attrs['trivial']:g}"
    )
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """Risk by epsilon, by accountant, and simulated."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for epsilon, part in data.basic_risk.groupby("epsilon"):
        axes[0].plot(data.releases, part.squeeze(), label=f"central ε = {epsilon:g}")
    axes[0].set(title="basic composition")
    for name, meaning in ACCOUNTANTS.items():
        axes[1].plot(data.releases, data.risk.sel(accountant=name), label=meaning)
    axes[1].axhline(data.attrs["trivial"], color="0.5", linestyle=":", label="always the centre")
    axes[1].set(title=f"accountants at ε = {EPSILON:g}")
    axes[2].plot(data.releases, data.risk.sel(accountant="basic"), label="bound")
    axes[2].errorbar(data.releases, data.simulated, 2 * data.standard_error, fmt=".", label="simulated (±2 s.e.)")
    axes[2].set(title=f"{data.attrs['trials']} simulated transcripts, ε = {EPSILON:g}")
    for ax in axes:
        ax.set(xlabel="releases L", ylabel="mean squared error of a record", yscale="log")
        ax.legend(fontsize="small")
    return figure


FIGURES = {
    "recon-1": Figure(
        "Risk of a labelled record against the number of releases, by budget and accountant",
        recipe,
        draw,
        summary,
        {"most": 40, "trials": 2000},
        {"most": 40, "trials": 10_000},
    )
}
