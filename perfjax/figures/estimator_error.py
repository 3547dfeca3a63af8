"""Figure 5 of the paper on reconstruction: what the likeliest pair of records really errs by, beside the local bound.

Two moments, the estimate held to the box. At small budgets the box, not the data, sets the error, which is then far
below the bound; at large ones the two agree inside the box. With a record at an end the error first exceeds the bound
(which the paper does not say) and falls below it again at budgets beyond its range.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from perfjax import accounting
from perfjax.figures._figure import Figure
from perfjax.figures._published import key
from perfjax.reconstruction import Moments, multiset_van_trees_bound, pair_estimate, two_moment_bound

if TYPE_CHECKING:
    import xarray

__all__ = ["FIGURES", "draw", "recipe", "summary"]

DELTA = 1e-5
EPSILONS = 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0
PUBLISHED = 20.0  # the greatest of the paper's
PAIRS = {"interior": (-0.4, 0.7), "boundary": (-1.0, 0.5)}


def recipe(*, trials: int, progress: bool) -> "xarray.Dataset":
    """The mean squared error of the likeliest pair, and the bound, by epsilon.

    Args:
        trials: simulated transcripts for each budget, the same noise for all, with its mirror image.
        progress: not used: it is a matter of seconds.
    """
    import xarray

    del progress
    pairs = jnp.asarray(list(PAIRS.values()))
    kappa = accounting.kappa(releases=2.0, epsilon=jnp.asarray(EPSILONS), delta=DELTA, accountant="basic")
    half = jax.random.normal(key(15), (-(-trials // 2), 2), float)
    errors = np.stack([[_errors(z, k, half) for k in kappa] for z in pairs])
    bound = two_moment_bound(pairs[:, None], kappa=kappa)
    van_trees = multiset_van_trees_bound(Moments(1.0, "paper"), pairs[:, None], 2, kappa=kappa)
    dims = ("pair", "epsilon")
    squared = {"units": "squared units of the records"}
    return xarray.Dataset(
        {
            "error": (dims, errors.mean(axis=-1), squared),
            "standard_error": (dims, errors.std(axis=-1, ddof=1) / np.sqrt(errors.shape[-1]), squared),
            "bound": (dims, np.asarray(bound), squared),
            "van_trees": (dims, np.asarray(van_trees), squared),
            "trivial": ("pair", np.sum(np.square(list(PAIRS.values())), axis=1), squared),
        },
        coords={"pair": list(PAIRS), "epsilon": list(EPSILONS)},
    ).assign_attrs(delta=DELTA, trials=trials)


@jax.jit
def _errors(records, kappa, normals):
    """Squared errors of the likeliest pair, each the mean of those at a noise and at its mirror image."""
    moments = jnp.stack([jnp.mean(records), jnp.mean(records**2)])
    noise = jnp.sqrt(kappa) * normals  # both moments have sensitivity 1 by the paper's account

    def squared(noise):
        estimate = pair_estimate(moments + noise, variances=jnp.stack([kappa, kappa]))
        return jnp.sum((estimate - records) ** 2, axis=-1)

    return (squared(noise) + squared(-noise)) / 2


def summary(data: "xarray.Dataset") -> list[str]:
    """The ratio of error and bound at every budget, and where a constant does better."""
    lines = []
    for pair in data.pair.values:
        part = data.sel(pair=pair)
        ratios = ", ".join(
            f"{e:g}: {float(x):.3g}" for e, x in zip(part.epsilon.values, part.error / part.bound, strict=True)
        )
        worse = part.epsilon.values[(part.error > part.trivial).values]
        lines.append(f"{pair} pair {PAIRS[pair]}: error over bound by central epsilon {ratios}")
        if worse.size:
            lines.append(f"  always answering 0 does better up to central epsilon {worse.max():g}")
    return lines


def draw(data: "xarray.Dataset") -> plt.Figure:
    """Error, bounds and the error of a constant for each pair; and the ratio of error and bound."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for number, (ax, pair) in enumerate(zip(axes, data.pair.values, strict=False)):
        part = data.sel(pair=pair)
        ax.errorbar(part.epsilon, part.error, 2 * part.standard_error, fmt="o-", markersize=4, label="likeliest pair")
        ax.plot(part.epsilon, part.bound, "--", label="Cramér-Rao bound")
        ax.plot(part.epsilon, part.van_trees, ":", label="any estimator, mean over records nearby")
        ax.axhline(float(part.trivial), color="0.5", label="always 0")
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="central ε",
            ylabel="mean squared error",
            title=f"{pair} pair {PAIRS[pair]}",
        )
        ax.legend(fontsize="small")
        axes[2].plot(part.epsilon, part.error / part.bound, "o-", color=f"C{number}", markersize=4, label=pair)
    axes[2].axhline(1, color="0.5")
    axes[2].axvspan(PUBLISHED, float(data.epsilon.max()), color="0.93", label="beyond the paper")
    axes[2].set(xscale="log", yscale="log", xlabel="central ε", ylabel="error over bound")
    axes[2].legend(fontsize="small")
    return figure


FIGURES = {
    "recon-5": Figure(
        "Error of the likeliest pair of records against the local bound, by epsilon",
        recipe,
        draw,
        summary,
        {"trials": 20_000},
        {"trials": 1_000_000},
    )
}
