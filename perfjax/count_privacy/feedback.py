"""Group size and privacy feeding back on each other: which groups survive the release of their own counts.

A member of a group of n watches the edge between n - 1 and n, and is leaked when the log-likelihood ratio of the
release exceeds tau: a larger group hides its members better, loses fewer, and grows. So there is one count n* below
which groups shrink and above which they grow.
"""

import math

import jax.numpy as jnp
from jax.scipy.special import erf, ndtr, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.count_privacy._arguments import check_ranges
from perfjax.count_privacy.log_gaussian import clipping_point, mu_of_count

__all__ = ["edge_leak_probability", "error_that_saves", "leak_split", "unstable_count", "unstable_multiplier"]


def edge_leak_probability(mu: Numbers, threshold: Numbers) -> Float[Array, "..."]:
    """P(Lambda > tau) = Phi(mu / 2 - tau / mu) for an edge that is mu-Gaussian DP, Lambda ~ N(mu^2 / 2, mu^2).

    Args:
        mu: above 0.
        threshold: tau, any number.

    Returns:
        A probability.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{edge_leak_probability(0.15, 0.2):.6f}")
        0.104136
    """
    mu, threshold = check_ranges(sigma=mu, threshold=threshold)
    return ndtr(mu / 2 - threshold / mu)


def leak_split(count, sigma, shift, threshold):
    """P(Lambda > tau) and its complement for the clipped release of a group, tau above 0; groups below 1 count as 1.

    A release of 0 is less likely with the member than without, and leaks nobody: only Z above z0 can.
    """
    count = jnp.maximum(count, 1)
    mu = mu_of_count(count, sigma, shift)
    # Beyond 50 Phi is constant, and its derivative's square may overflow.
    edge = jnp.clip(jnp.maximum(threshold / mu - mu / 2, clipping_point(count, sigma, shift)), -50, 50)
    return ndtr(-edge), ndtr(edge)


def unstable_count(
    leave: Numbers, recruit: Numbers, threshold: Numbers, *, sigma: Numbers, shift: Numbers, recruiters: str = "spared"
) -> Float[Array, "..."]:
    """n*, the size of a group that neither shrinks nor grows in expectation; smaller ones die out, larger ones grow.

    n* = 1 / (exp(sigma mu*) - 1) + 1 - c, with mu* the mu at which a member is leaked with the probability
    p* = r / (q + r) (everyone recruits: r / q) that keeps the group: mu* = -z + sqrt(z^2 + 2 tau), z = Phi^-1(1 - p*).

    Args:
        leave: q, in (0, 1].
        recruit: r, in [0, 1].
        threshold: tau, above 0.
        sigma: of the mechanism, above 0.
        shift: c of the mechanism, above 0.
        recruiters: "spared" or "everyone", as in `Participation`.

    Returns:
        n*; infinite without recruits, when every group shrinks. Below 1 (in the limit 1 - c) every group grows. It
        neglects clipping, as it may at the counts that such thresholds have (for 2.1 and more where r is 0.5 or less).

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> from perfjax.count_privacy import log_gaussian_sigma
        >>> sigma = log_gaussian_sigma(0.2, 1.0)
        >>> print(f"{unstable_count(0.3, 0.05, 0.2, sigma=sigma, shift=1.0):.4f}")
        45.4272
    """
    sigma, shift = check_ranges(sigma=sigma, shift=shift)
    mu, _ = _balance(leave, recruit, threshold, recruiters)
    return 1 / jnp.expm1(sigma * mu) + 1 - shift


def unstable_multiplier(
    leave: Numbers, recruit: Numbers, threshold: Numbers, *, sigma: Numbers, shift: Numbers, recruiters: str = "spared"
) -> Float[Array, "..."]:
    """f'(n*), by which a small distance from n* is multiplied at each release: above 1, n* being unstable.

    Args:
        leave: as in `unstable_count`.
        recruit: in (0, 1].
        threshold: as in `unstable_count`.
        sigma: as in `unstable_count`.
        shift: as in `unstable_count`.
        recruiters: as in `unstable_count`.

    Returns:
        The derivative of the next expected count in the present one.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    sigma, shift = check_ranges(sigma=sigma, shift=shift)
    mu, rate = _balance(leave, recruit, threshold, recruiters)
    (threshold,) = check_ranges(threshold=threshold)
    n = 1 / jnp.expm1(sigma * mu) + 1 - shift
    in_mu = norm.pdf(threshold / mu - mu / 2) * (threshold / mu**2 + 0.5)
    in_count = -1 / ((n + shift) * (n - 1 + shift) * sigma)
    return 1 - rate * n * in_mu * in_count


def error_that_saves(
    count: Numbers, leave: Numbers, recruit: Numbers, threshold: Numbers, *, shift: Numbers, recruiters: str = "spared"
) -> Float[Array, "..."]:
    """The relative error r0 whose mechanism makes a group of n the one that just survives: n* = n.

    sigma = log(1 + 1 / (n - 1 + c)) / mu*, r0 = (1 + c) (2 Phi(sigma) - 1). A larger error saves the group.

    Args:
        count: n, above 1 - c.
        leave: q, in (0, 1].
        recruit: r, in (0, 1].
        threshold: tau, above 0.
        shift: c, above 0.
        recruiters: "spared" or "everyone".

    Returns:
        r0; above 1 where no tolerance saves the group.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{error_that_saves(40.0, 0.3, 0.05, 0.2, shift=1.0):.5f}")
        0.22663
    """
    count, shift = check_ranges(count=count, shift=shift)
    mu, _ = _balance(leave, recruit, threshold, recruiters)
    sigma = jnp.log1p(1 / (count - 1 + shift)) / mu
    return (1 + shift) * erf(sigma * math.sqrt(0.5))


def _balance(leave, recruit, threshold, recruiters):
    """mu*, and by how much growth falls with the leak probability."""
    _check.as_choice(recruiters, "recruiters", ("spared", "everyone"))
    q, r, tau = _check.as_floats(leave=leave, recruit=recruit, threshold=threshold)
    q = _check.in_range(q, "leave", 0, 1, open_low=True)
    r = _check.in_range(r, "recruit", 0, 1)
    tau = _check.in_range(tau, "threshold", 0, open_low=True, open_high=True)
    rate = q + r if recruiters == "spared" else q
    kept = 1 - r / rate  # at most 0 where a group grows even if everybody is leaked
    z = jnp.where(kept > 0, ndtri(jnp.where(kept > 0, kept, 0.5)), -jnp.inf)
    root = jnp.sqrt(jnp.where(kept > 0, z, 0) ** 2 + 2 * tau)
    positive = z > 0
    size = jnp.where(positive, z, 0) + root
    mu = jnp.where(positive, 2 * tau / size, root - jnp.where(kept > 0, z, 0))
    return jnp.where(kept > 0, mu, jnp.inf), rate
