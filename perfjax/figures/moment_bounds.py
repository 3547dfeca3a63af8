"""Figures 2 and 3 of the paper on reconstruction: pairs of records under moments, synthetic and of load profiles.

Figure 2: the bound against the number of moments. Inside the box it has a finite minimum, which is the least number
that identifies the pair; with both records at the ends it falls on. Figure 3: with two moments, the bound against how
far the two records are apart, and how many records lie near the ends.
"""

import itertools
from typing import TYPE_CHECKING

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from perfjax import accounting
from perfjax.figures._figure import Figure
from perfjax.reconstruction import Moments, ScanStatus, scan_releases, two_moment_bound

if TYPE_CHECKING:
    import xarray

__all__ = [
    "BINS",
    "FIGURES",
    "curves",
    "draw_curves",
    "draw_pairs",
    "pairs_apart",
    "summary_of_curves",
    "summary_of_pairs",
]

EPSILON, DELTA = 1.0, 1e-5
PAIRS = {"interior": (-0.4, 0.7), "mixed": (-0.6, 1.0), "boundary": (-1.0, 1.0)}
ACCOUNTANTS = ("basic", "zcdp")
SENSITIVITIES = ("paper", "exact")
LEAST_GAP = 0.1  # between the records of a cohort
BINS = (0.0, 0.5, 0.8, 0.95, 1.0)  # edges of |z|; what is exactly 1 has a bin of its own


def curves(*, most: int, cohorts: int, records: np.ndarray, progress: bool) -> "xarray.Dataset":
    """The bound on a pair against the number of moments.

    Args:
        most: greatest number of moments; all from 2 are taken.
        cohorts: pairs drawn from the records, spread evenly from the innermost to the outermost.
        records: in [-1, 1].
        progress: not used: it is a matter of seconds.
    """
    import xarray

    del progress
    drawn = _cohorts(records, cohorts)
    scans = {
        (accountant, sensitivity): scan_releases(
            Moments(1.0, sensitivity),
            np.asarray(list(PAIRS.values())),
            releases=(2, most),
            epsilon=EPSILON,
            delta=DELTA,
            accountant=accountant,
        )
        for accountant in ACCOUNTANTS
        for sensitivity in SENSITIVITIES
    }
    of_cohorts = scan_releases(
        Moments(1.0, "paper"), drawn, releases=(2, most), epsilon=EPSILON, delta=DELTA, accountant="basic"
    )

    def table(read):
        return np.stack([[np.asarray(read(scans[a, s])) for s in SENSITIVITIES] for a in ACCOUNTANTS])

    dims = ("accountant", "sensitivity", "pair")
    return xarray.Dataset(
        {
            "bound": ((*dims, "releases"), table(lambda scan: scan.bound)),
            "best_releases": (dims, table(lambda scan: scan.best_releases)),
            "status": (dims, table(lambda scan: scan.status)),
            "cohort_bound": (("cohort", "releases"), np.asarray(of_cohorts.bound)),
            "cohort_best": ("cohort", np.asarray(of_cohorts.best_releases)),
            "cohort_records": (("cohort", "record"), drawn),
        },
        coords={
            "accountant": list(ACCOUNTANTS),
            "sensitivity": list(SENSITIVITIES),
            "pair": list(PAIRS),
            "releases": np.arange(2, most + 1),
        },
    ).assign_attrs(epsilon=EPSILON, delta=DELTA)


def _cohorts(records, count):
    """Pairs from the innermost to the outermost, by the larger magnitude."""
    first, second = _pairs(records, 4000, least=LEAST_GAP)
    order = np.argsort(np.maximum(np.abs(first), np.abs(second)), kind="stable")
    place = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    return np.stack([first[place], second[place]], axis=-1)


def _pairs(records, count, least):
    """Random pairs of records that are further apart than `least`, the lower one first."""
    records = np.asarray(records, float)
    drawn = np.sort(np.random.default_rng(0).choice(records, (count, 2)), axis=1)
    apart = drawn[:, 1] - drawn[:, 0] > least
    if not np.any(apart):
        raise ValueError(f"Argument `records` must have two that are more than {least:g} apart, but has none.")
    return drawn[apart].T


def pairs_apart(*, pairs: int, records: np.ndarray, progress: bool) -> "xarray.Dataset":
    """The bound of two moments on random pairs, and how many records lie in each bin of magnitudes.

    Args:
        pairs: how many are drawn; those of two equal records, whose bound is infinite, are left out.
        records: in [-1, 1].
        progress: not used: it is a matter of seconds.
    """
    import xarray

    del progress
    first, second = _pairs(records, pairs, least=0.0)
    kappa = accounting.kappa(releases=2.0, epsilon=EPSILON, delta=DELTA, accountant="basic")
    found = np.asarray(two_moment_bound(jnp.stack([first, second], axis=-1), kappa=kappa))
    largest = np.maximum(np.abs(first), np.abs(second))
    magnitudes = np.abs(np.asarray(records, float))
    counts = np.bincount(_bin(magnitudes), minlength=len(BINS))
    labels = [f"{low:g}-{high:g}" for low, high in itertools.pairwise(BINS)] + ["1"]
    return xarray.Dataset(
        {
            "bound": ("pair", found, {"units": "squared units of the records"}),
            "half_gap": ("pair", (second - first) / 2),
            "middle": ("pair", (second + first) / 2),
            "bin": ("pair", _bin(largest)),
            "both_at_ends": ("pair", np.minimum(np.abs(first), np.abs(second)) == 1),
            "share": ("magnitude", counts / counts.sum()),
        },
        coords={"magnitude": labels},
    ).assign_attrs(epsilon=EPSILON, delta=DELTA, kappa=float(kappa), equal_pairs=int(pairs - first.size))


def _bin(magnitudes):
    """Which of `BINS` a magnitude lies in; 1 itself is the last."""
    return np.where(magnitudes >= 1, len(BINS) - 1, np.digitize(magnitudes, BINS[1:-1]))


def summary_of_curves(data: "xarray.Dataset") -> list[str]:
    """Where the bound is least, for each pair; and for the pairs drawn from the records."""
    lines = []
    for pair in data.pair.values:
        for accountant in data.accountant.values:
            words = []
            for sensitivity in data.sensitivity.values:
                at = {"pair": pair, "accountant": accountant, "sensitivity": sensitivity}
                best, bound = int(data.best_releases.sel(at)), data.bound.sel(at)
                status = ScanStatus(int(data.status.sel(at))).meaning
                words.append(
                    f"{sensitivity} sensitivity: {float(bound.sel(releases=best)):.4g} at {best} moments ({status})"
                )
            lines.append(f"{pair} pair, {accountant}: " + "; ".join(words))
    least = int(data.releases[0])
    at_least = int((data.cohort_best == least).sum())
    lines.append(f"pairs of records, basic: {at_least} of {data.sizes['cohort']} have their least bound at {least}")
    return lines


def summary_of_pairs(data: "xarray.Dataset") -> list[str]:
    """How the bound goes with the gap, and where the records lie."""
    slope = np.polyfit(np.log(data.half_gap), np.log(data.bound), 1)[0]
    near = data.half_gap < float(data.half_gap.quantile(0.1))
    law = data.attrs["kappa"] / 2 * (1 + 4 * data.middle**2 + 4 * data.half_gap**2) / data.half_gap**2
    shares = ", ".join(f"{label}: {float(x):.1%}" for label, x in zip(data.magnitude.values, data.share, strict=True))
    return [
        f"{data.sizes['pair']} pairs ({data.attrs['equal_pairs']} of equal records left out); the bound goes with the"
        f" half gap to the power {slope:.2f} overall; a tenth of the pairs, the nearest, hold"
        f" {float(data.bound.where(near).sum() / data.bound.sum()):.0%} of the summed bound",
        f"largest deviation from the exact law: {float(np.abs(data.bound / law - 1).max()):.1e}",
        f"magnitudes of records: {shares}; pairs with both at the ends: {float(data.both_at_ends.mean()):.1%}",
    ]


def draw_curves(data: "xarray.Dataset") -> plt.Figure:
    """Synthetic pairs on the left, pairs of records on the right."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for number, pair in enumerate(data.pair.values):
        for accountant, style in zip(data.accountant.values, ("-", "--"), strict=True):
            shown = data.bound.sel(pair=pair, accountant=accountant, sensitivity="paper")
            label = f"{pair} {PAIRS[pair]}, {accountant}"
            axes[0].plot(data.releases, shown, style, color=f"C{number}", label=label)
            best = int(np.argmin(shown.values))
            axes[0].plot(data.releases[best], shown[best], "o", color=f"C{number}", markersize=4)
    for cohort in range(data.sizes["cohort"]):
        z = ", ".join(f"{x:.2f}" for x in data.cohort_records.values[cohort])
        shown = data.cohort_bound[cohort]
        axes[1].plot(data.releases, shown, color=f"C{cohort}", label=f"({z})")
        best = int(np.argmin(shown.values))
        axes[1].plot(data.releases[best], shown[best], "o", color=f"C{cohort}", markersize=4)
    for ax, title in zip(axes, ("synthetic pairs", "pairs of records, basic"), strict=True):
        ax.set(xlabel="moments L", ylabel="bound on the pair", yscale="log", title=title)
        ax.legend(fontsize="x-small")
    return figure


def draw_pairs(data: "xarray.Dataset") -> plt.Figure:
    """The bound against the half gap, by bin of magnitudes; and the share of records in each bin."""
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for number, label in enumerate(data.magnitude.values):
        shown = data.where(data.bin == number, drop=True)
        axes[0].plot(shown.half_gap, shown.bound, ".", color=f"C{number}", markersize=3, label=f"max |z| in {label}")
    gaps = np.geomspace(float(data.half_gap.min()), 1, 100)
    axes[0].plot(gaps, data.attrs["kappa"] / (2 * gaps**2), "k--", label="κ/(2γ²)")
    axes[0].set(xscale="log", yscale="log", xlabel="half gap γ", ylabel="bound on the pair, two moments")
    axes[0].legend(fontsize="x-small")
    axes[1].bar(data.magnitude.values, data.share, color=[f"C{k}" for k in range(data.sizes["magnitude"])])
    axes[1].set(xlabel="magnitude of a record", ylabel="share of the records")
    return figure


FIGURES = {
    "recon-2": Figure(
        "Bound on a pair of records against the number of moments",
        curves,
        draw_curves,
        summary_of_curves,
        {"most": 40, "cohorts": 6},
        {"most": 40, "cohorts": 12},
        takes_records=True,
    ),
    "recon-3": Figure(
        "Bound on pairs of records from two moments, against how far they are apart",
        pairs_apart,
        draw_pairs,
        summary_of_pairs,
        {"pairs": 2000},
        {"pairs": 20_000},
        takes_records=True,
    ),
}
