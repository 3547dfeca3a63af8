"""Closed forms for one Gaussian release: its error, and what membership inference learns about one record.

Notation: gamma = noise_scale, n = population; the release is the mean of n records plus N(0, gamma^2/n I). s
is the distance of the record from the (clipped) sample mean, tau the threshold of the log-likelihood ratio
Lambda above which the record counts as leaked, m = sqrt(n) s/((n - 1) gamma), alpha a Renyi order.

Lambda compares the release with the record against the release without it at the same noise variance
gamma^2/n, although the latter has n - 1 users. Everything here is conditional on the data; averaged over the
data, the leak probability is an integral (eq 11) that this package takes as an argument.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import in_range
from perfjax.theorems._arguments import arguments, per_user

__all__ = [
    "PrivacyLossLaw",
    "gaussian_dp",
    "leak_probability_given_distance",
    "mahalanobis_error",
    "membership_tail_bound",
    "optimal_order",
    "optimal_tail_bound",
    "privacy_loss_law",
    "renyi_divergence",
    "renyi_tail_bound",
    "threshold_at_false_positive_rate",
]

# Phi(-40) and exp(-40^2/2) are zero in float64: a score beyond this says never or surely.
_REACH = 40.0


def mahalanobis_error(
    noise_scale: ArrayLike, population: ArrayLike, *, dim: ArrayLike, precision_trace: ArrayLike
) -> Float[Array, "..."]:
    """The expected squared Mahalanobis error of one release: (gamma^2 tr(Sigma^-1) + d)/n.

    Exact without clipping. The clipping bias is neglected: with clipping the squared bias is missing and d
    stands for the smaller tr(Sigma^-1 Cov(clipped record)), so the value then bounds the error neither way.

    Args:
        noise_scale: gamma, in [0, inf], in units of the records.
        population: n, in [0, inf).
        dim: d, dimension of a record, at least 1.
        precision_trace: tr(Sigma^-1), positive; Sigma is the covariance of a record.

    Returns:
        The error, without unit; infinite without users.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 3, eq (7).
    """
    gamma, n, d, trace = arguments(
        noise_scale=noise_scale, population=population, dim=dim, precision_trace=precision_trace
    )
    return per_user(gamma**2 * trace + d, n)


def renyi_tail_bound(threshold: ArrayLike, order: ArrayLike, divergence: ArrayLike) -> Float[Array, "..."]:
    """An upper bound on the probability that a privacy loss exceeds a threshold, from one Renyi divergence.

    P(Lambda > tau) <= exp(-(alpha - 1)(tau - D_alpha)), for any mechanism.

    A bound for every order above 1 (Markov's inequality), capped at 1, where it says nothing and has
    derivative 0.

    Args:
        threshold: tau, any real number; the paper takes tau > 0.
        order: alpha, in (1, inf).
        divergence: D_alpha of the output with the record from the output without it, in [0, inf].

    Returns:
        The bound, in [0, 1].

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 4. The cap at 1 is ours.
    """
    tau, alpha, divergence = arguments(threshold=threshold, order=order, divergence=divergence)
    alpha = in_range(alpha, "order", 1.0, open_low=True)
    finite = divergence < jnp.inf
    exponent = (alpha - 1) * (jnp.where(finite, divergence, 0.0) - tau)
    return jnp.where(finite, jnp.exp(jnp.minimum(exponent, 0.0)), 1.0)


def renyi_divergence(
    order: ArrayLike, distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike
) -> Float[Array, "..."]:
    """The Renyi divergence of the release with the record from the release without it: alpha m^2/2.

    Exact given the data, for the shared noise variance gamma^2/n. Also at orders up to 1; order 1 is the
    Kullback-Leibler divergence.

    Args:
        order: alpha, in (0, inf).
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).

    Returns:
        The divergence, in nats; infinite where `gaussian_dp` is, with derivative 0 there.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 11.
    """
    alpha, s, gamma, n = arguments(order=order, distance=distance, noise_scale=noise_scale, population=population)
    m = _separation(s, gamma, n)
    finite = m < jnp.inf
    return jnp.where(finite, alpha * jnp.where(finite, m, 0.0) ** 2 / 2, jnp.inf)


def membership_tail_bound(
    distance: ArrayLike,
    noise_scale: ArrayLike,
    population: ArrayLike,
    *,
    threshold: ArrayLike,
    order: ArrayLike,
) -> Float[Array, "..."]:
    """An upper bound on the probability that one record is leaked, from one Renyi order.

    P(Lambda > tau | data) <= exp(-(alpha - 1)(tau - alpha m^2/2)): `renyi_tail_bound` at `renyi_divergence`.

    A bound for every order above 1, capped at 1; not tight: `optimal_tail_bound` picks the order,
    `leak_probability_given_distance` is exact.

    Args:
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).
        threshold: tau, any real number; the paper takes tau > 0.
        order: alpha, in (1, inf).

    Returns:
        The bound, in [0, 1]; 1 without noise and for n <= 1.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 5, eq (9). The cap is ours.
    """
    s, gamma, n, tau, alpha = arguments(
        distance=distance, noise_scale=noise_scale, population=population, threshold=threshold, order=order
    )
    return renyi_tail_bound(tau, alpha, renyi_divergence(alpha, s, gamma, n))


def optimal_order(
    distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike, *, threshold: ArrayLike
) -> Float[Array, "..."]:
    """The Renyi order that makes `membership_tail_bound` smallest: 1/2 + tau/m^2.

    Exact where it exceeds 1, that is where tau > m^2/2; elsewhere no order above 1 bounds anything below 1,
    and the value is not an order to use.

    Args:
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).
        threshold: tau, any real number; the paper takes tau > 0.

    Returns:
        The order, infinite (for tau > 0) at distance 0 and 1/2 without noise.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", after eq (9).
    """
    s, gamma, n, tau = arguments(distance=distance, noise_scale=noise_scale, population=population, threshold=threshold)
    apart = s > 0
    several = n > 1
    n = jnp.where(several, n, 2.0)
    # 1/m rather than m: polynomial in gamma, so that the noiseless limit has a derivative
    inverse = gamma * (n - 1) / (jnp.sqrt(n) * jnp.where(apart, s, 1.0))
    inverse_square = jnp.where(several, jnp.where(apart, inverse**2, jnp.inf), 0.0)
    return 0.5 + jnp.where(tau == 0, 0.0, tau * inverse_square)


def optimal_tail_bound(
    distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike, *, threshold: ArrayLike
) -> Float[Array, "..."]:
    """The best Renyi bound on the probability that one record is leaked: exp(-(tau - a)^2/(4a)), a = m^2/2.

    An upper bound; 1, hence vacuous, where tau <= a (outliers, little noise), with derivative 0 there. Tight
    up to the difference between a Gaussian tail and exp(-u^2/2).

    Args:
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).
        threshold: tau, any real number; the paper takes tau > 0.

    Returns:
        The bound, in [0, 1]; 0 at distance 0 for tau > 0, 1 without noise and for n <= 1.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (10).
    """
    s, gamma, n, tau = arguments(distance=distance, noise_scale=noise_scale, population=population, threshold=threshold)
    shortfall = jnp.maximum(-_score(_separation(s, gamma, n), tau), 0.0)
    return jnp.exp(-(shortfall**2) / 2)


class PrivacyLossLaw(NamedTuple):
    """The normal law of a log-likelihood ratio: its mean and standard deviation, in nats."""

    mean: Float[Array, "..."]
    std: Float[Array, "..."]


def privacy_loss_law(distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike) -> PrivacyLossLaw:
    """The law of the log-likelihood ratio of one record given the data: N(m^2/2, m^2).

    Exact, for the shared noise variance gamma^2/n.

    Args:
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).

    Returns:
        Mean m^2/2 and standard deviation m; a point mass at 0 at distance 0.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 6.
    """
    m = gaussian_dp(distance, noise_scale, population)
    return PrivacyLossLaw(mean=m**2 / 2, std=m)


def leak_probability_given_distance(
    distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike, *, threshold: ArrayLike
) -> Float[Array, "..."]:
    """The probability that one record is leaked given the data: Phi(m/2 - tau/m).

    Exact, for the shared noise variance gamma^2/n; a test at a threshold that does not depend on the record.

    Args:
        distance: s, distance of the record from the (clipped) sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).
        threshold: tau, any real number; the paper takes tau > 0.

    Returns:
        The probability. At distance 0 the ratio is 0 and exceeds only a negative threshold; without noise,
        and for n <= 1 where the ratio is undefined, the record counts as leaked.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 7. n <= 1 is ours.

    Example:
        >>> round(float(leak_probability_given_distance(3.0, 1.0, 100, threshold=0.02)), 4)
        0.5341
    """
    s, gamma, n, tau = arguments(distance=distance, noise_scale=noise_scale, population=population, threshold=threshold)
    return ndtr(_score(_separation(s, gamma, n), tau))


def gaussian_dp(distance: ArrayLike, noise_scale: ArrayLike, population: ArrayLike) -> Float[Array, "..."]:
    """The Gaussian-DP parameter of one record given the data: m = sqrt(n) s/((n - 1) gamma).

    Exact for the record: its membership test is that of N(0, 1) against N(m, 1). At distance 2R, the largest
    that records clipped to radius R can have, it is an upper bound for all of them. Adjacency: one record
    removed, the noise variance gamma^2/n kept.

    Args:
        distance: s, distance of the record from the (clipped) sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).

    Returns:
        m in [0, inf]: infinite for n <= 1 and, unless the distance is 0, without noise; constant there, so
        with derivative 0.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Remark 1. The paper's worst case
        2R/(gamma sqrt(n)) replaces n - 1 by n.
    """
    s, gamma, n = arguments(distance=distance, noise_scale=noise_scale, population=population)
    return _separation(s, gamma, n)


def threshold_at_false_positive_rate(
    distance: ArrayLike,
    noise_scale: ArrayLike,
    population: ArrayLike,
    *,
    false_positive_rate: ArrayLike,
) -> Float[Array, "..."]:
    """The threshold at which the membership test of one record has a given false-positive rate.

    tau = m Phi^-1(1 - nu) - m^2/2.

    Exact, and record-dependent: at it the leak probability is Phi(m - Phi^-1(1 - nu)).

    Args:
        distance: s, distance of the record from the sample mean, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of s.
        population: n, in [0, inf).
        false_positive_rate: nu, in (0, 1).

    Returns:
        tau, which may be negative; -inf where m is infinite.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", end of the remark on Gaussian DP.
    """
    s, gamma, n, nu = arguments(
        distance=distance,
        noise_scale=noise_scale,
        population=population,
        false_positive_rate=false_positive_rate,
    )
    m = _separation(s, gamma, n)
    return -m * (m / 2 + ndtri(nu))


def _separation(s: Float[Array, "..."], gamma: Float[Array, "..."], n: Float[Array, "..."]) -> Float[Array, "..."]:
    """m = sqrt(n) s/((n - 1) gamma), with its limits."""
    noisy, several = gamma > 0, n > 1
    n = jnp.where(several, n, 2.0)
    m = s / jnp.where(noisy, gamma, 1.0) * (jnp.sqrt(n) / (n - 1))
    noiseless = jnp.where(s > 0, jnp.inf, 0.0)
    return jnp.where(several, jnp.where(noisy, m, noiseless), jnp.inf)


def _score(m: Float[Array, "..."], tau: Float[Array, "..."]) -> Float[Array, "..."]:
    """m/2 - tau/m, held at +-_REACH: beyond, the tail is 1 or 0 and tau/m^2 makes derivatives 0 * inf."""
    excess = m**2 / 2 - tau
    surely = excess > _REACH * m
    never = ~surely & ((-excess > _REACH * m) | (m == 0))
    open_ = ~surely & ~never
    m, tau = jnp.where(open_, m, 1.0), jnp.where(open_, tau, 0.0)
    return jnp.where(surely, _REACH, jnp.where(never, -_REACH, m / 2 - tau / m))
