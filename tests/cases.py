"""Named settings whose answers are known exactly, and per-record simulation in NumPy to compare the others with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import perfjax as pj
from perfjax.law._kernel import leaked_counts

__all__ = [
    "EXACT_LEAKS",
    "PRESETS",
    "TWO_LEAKED",
    "TWO_USERS",
    "ExactLeak",
    "enumerated_rows",
    "in_two_dimensions",
    "leaked_in_the_law",
    "recomputed_mixture",
    "simulated_leaks",
]


class ExactLeak(NamedTuple):
    """A leak probability in closed form."""

    mechanism: pj.mechanisms.AbstractMechanism
    leakage: pj.leakage.AbstractLeakage
    population: float
    value: float


def in_two_dimensions(noise_scale, population, threshold, variance=1.0):
    """p_tau for d = 2: the log-likelihood ratio is a difference of exponential variables.

    Its moment generating function is 1 / (1 - k^2 s - k^2 s^2) = 1 / ((1 - up s) (1 + down s)), k^2 = variance / ((n -
    1) gamma^2), so that P(Lambda > tau) = up / (up + down) exp(-tau / up).
    """
    square = variance / ((population - 1) * noise_scale**2)
    root = np.sqrt(square * square + 4 * square)
    up = (root + square) / 2
    return up / root * np.exp(-threshold / up)


def in_four_dimensions(noise_scale, population, threshold, variance=1.0):
    """p_tau for d = 4: a difference of Erlang variables of shape 2."""
    square = variance / ((population - 1) * noise_scale**2)
    root = np.sqrt(square * square + 4 * square)
    up, down = (root + square) / 2, 2 * square / (root + square)
    share = up / root
    return np.exp(-threshold / up) * share**2 * (1 + threshold / up + 2 * share * down / up)


def mean_of(noise_scale, dim, **options: Any):
    return pj.GaussianMean(noise_scale, dim=dim, **options)


TWO_USERS = (pj.GaussianMean(1.0, dim=2), pj.LikelihoodRatioAbove(0.1), *np.array([2.0, 1.0, 1.5]))
"""Mechanism, leakage, population, noise and shared noise, of which `TWO_LEAKED` is told."""

TWO_LEAKED = (0.014798, 0.674976, 0.310226)
"""The probabilities that 0, 1 and 2 are leaked, by SciPy's quadrature; 4,000,000 releases of records agree to 0.0003.

Leaked independently they would be 0.1241, 0.4563 and 0.4195.
"""

EXACT_LEAKS = {
    f"d={dim} gamma={gamma:g} n={n:g} tau={tau:g} v={v:g}": ExactLeak(
        mean_of(gamma, dim, covariance=v), pj.LikelihoodRatioAbove(tau), n, exact(gamma, n, tau, v)
    )
    for dim, exact in ((2, in_two_dimensions), (4, in_four_dimensions))
    for gamma, n, tau, v in (
        (1.0, 2.0, 0.02, 1.0),
        (0.3, 100.0, 0.02, 1.0),
        (5.0, 100.0, 0.1, 4.0),
        (1.0, 1e6, 0.02, 1.0),
        (1e-3, 50.0, 5.0, 0.1),
        (40.0, 30.0, 0.01, 1.0),
    )
} | {
    f"bits eps={epsilon:g}": ExactLeak(pj.RandomizedResponse(epsilon), pj.TrueBitKept(), 10.0, value)
    for epsilon, value in ((np.log(3.0), 0.75), (np.log(1.5), 0.6), (np.log(99.0), 0.99))
}

PRESETS: dict[str, dict[str, Any]] = {
    "mean-estimation": {
        "population": 1000,
        "rounds": 50,
        "noise_scale": 1.0,
        "dim": 12,
        "clip_radius": 10.0,
        "mean": 0.0,
        "covariance": 1.0,
        "threshold": 0.02,
        "outside": "shared",
        "leave": 0.45,
        "recruit": 0.11,
        "leave_spared": 0.0,
        "recruit_leaked": 0.0,
        "recruiters": "spared",
        "floor": 1,
        "cap": 20_000,
    },
    "randomized-response": {
        "population": 400,
        "rounds": 200,
        "epsilon": 1.0,
        "mean": [0.0, 1.0],
        "clip_estimate": False,
        "leave": 0.3,
        "recruit": 0.6,
        "leave_spared": 0.0,
        "recruit_leaked": 0.0,
        "recruiters": "spared",
        "floor": 1,
        "cap": 20_000,
    },
}
PRESETS["breach-survey"] = PRESETS["mean-estimation"] | {"leave": 0.11, "recruit": 0.52}


def recomputed_mixture(noise_scale, population, threshold, dim, variance=1.0):
    """p_tau with the likelihood ratio recomputed: noncentral chi-square tails averaged over the record's distance.

    y = |delta|^2 / (variance (1 - 1/n)) is chi2_d. The tail is 0 up to a kink at `start`, from where the trapezoid
    rule runs in the log of what lies beyond.
    """
    n, gamma2 = population, noise_scale**2
    shift, rate = n * (dim * np.log1p(1 / (n - 1)) - 2 * threshold), n * variance / gamma2
    start = max(0.0, -shift / rate)
    beyond = np.exp(np.linspace(np.log(1e-40), np.log(scipy.stats.chi2.isf(1e-18, dim) + start), 3001))
    y = start + beyond
    argument = rate * beyond if start else shift + rate * y
    leaked = scipy.stats.ncx2.cdf(argument, dim, (n - 1) * variance * y / gamma2)
    return np.sum(leaked * scipy.stats.chi2.pdf(y, dim) * beyond) * np.log(beyond[1] / beyond[0])


def clipped(records, radius):
    if radius is None:
        return records
    norm = np.linalg.norm(records, axis=-1, keepdims=True)
    return records * np.minimum(1, radius / np.maximum(norm, 1e-300))


def simulated_leaks(
    noise_scale, population, threshold, dim, *, outside="shared", clip_radius=None, mean=0.0, covariance=1.0, users
):
    """The leaked share of every simulated release, record by record, both densities written out."""
    n, rng = population, np.random.default_rng(7)
    sigma = np.asarray(covariance, float)
    factor = np.linalg.cholesky(sigma if sigma.ndim == 2 else np.eye(dim) * sigma)
    shares = []
    for _ in range(users // n // 200):
        records = clipped(mean + rng.normal(size=(200, n, dim)) @ factor.T, clip_radius)
        center = records.mean(axis=1)
        release = center + rng.normal(size=(200, dim)) * noise_scale / np.sqrt(n)
        without = (n * center[:, None] - records) / (n - 1)
        variance_in, variance_out = noise_scale**2 / n, noise_scale**2 / (n if outside == "shared" else n - 1)
        log_in = -dim / 2 * np.log(variance_in) - np.sum((release - center) ** 2, -1) / (2 * variance_in)
        log_out = -dim / 2 * np.log(variance_out) - np.sum((release[:, None] - without) ** 2, -1) / (2 * variance_out)
        shares.append(np.mean(log_in[:, None] - log_out > threshold, axis=1))
    return np.concatenate(shares)


def leaked_in_the_law(mechanism, leakage, n, noise, shared, *, counts):
    """The probabilities that 0 to `counts` - 1 of n users are leaked, given what they share, by the law's kernel."""

    @jax.jit
    def probabilities(n, noise, shared):
        given = pj.leakage.leak_distribution(mechanism, leakage, n, noise, shared)
        alone = jax.tree.map(lambda x: x[None, None], given)
        independent, k = pj.leakage.pair_of(mechanism, leakage).independent, jnp.arange(counts, dtype=n.dtype)
        return leaked_counts(n[None], alone, jnp.ones((1, 1)), k, independent=independent)[0]

    return probabilities(*map(jnp.asarray, (n, noise, shared)))


def enumerated_rows(p, q, r, cap, recruiters):
    """P(m users follow n), from 1 to `cap`: leaked ones leave with probability q, recruits join with probability r.

    Leaks have the probability p, independently of each other; the floor is 1.
    """
    binomial, rows = scipy.stats.binom.pmf, np.zeros((cap + 1, cap + 1))
    for n in range(1, cap + 1):
        for k in range(n + 1):
            recruiting = n if recruiters == "everyone" else n - k
            stay, join = binomial(range(k + 1), k, q)[::-1], binomial(range(recruiting + 1), recruiting, r)
            following = np.convolve(stay, join)
            np.add.at(rows[n], np.clip(n - k + np.arange(following.size), 1, cap), binomial(k, n, p) * following)
    return rows
