"""Closed forms over many rounds: cumulative error, its limits, and how long until a release is accurate.

Notation: first_error is (gamma^2 tr(Sigma^-1) + d)/n_0, the error of a release at the initial population; C
is the growth factor of release 0, T = rounds. Releases are numbered from 0; release t is made by the
population that t rounds of growth left behind.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_count, as_floats
from perfjax.theorems._arguments import arguments, per_user
from perfjax.theorems.population import kantorovich_factor

__all__ = [
    "clipping_bias_bound",
    "cumulative_bound",
    "log_cumulative_bound",
    "log_geometric_sum",
    "long_run_error_bound",
    "noise_deviation_bound",
    "pac_rounds",
    "sampling_deviation_bound",
    "zero_noise_error",
]

_BERNOULLI_NUMBERS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_SERIES = tuple(b / (2 * k * math.factorial(2 * k)) for k, b in enumerate(_BERNOULLI_NUMBERS, start=1))


def log_geometric_sum(log_growth: ArrayLike, *, first: int, last: int) -> Float[Array, "..."]:
    """log of the sum of C^-t over t = first..last, for every C > 0.

    With g = ln C and f(x) = ln((1 - exp(-x))/x): ln(last - first + 1) - first g + f((last - first + 1) g) -
    f(g). f is smooth at 0, so that C = 1 is an ordinary point, and no power of C is ever formed.

    Exact. The cost does not depend on the number of terms.

    Args:
        log_growth: g = ln C, any real number.
        first: First exponent, at least 0.
        last: Last exponent, at least `first`.

    Returns:
        The log of the sum, accurate to rounding. At g = -inf (C = 0) and g = inf its limit, with derivative
        0.

    Raises:
        ValueError: If `first` or `last` is not an integer in its range.

    Source:
        The geometric sum in "Performative Privacy: When Differential Privacy Maximizes Utility", eq (16), for
        any window of releases; the paper's quotient is 0/0 at C = 1.
    """
    first = as_count(first, "first", low=0)
    last = as_count(last, "last", low=first)
    (g,) = as_floats(log_growth=log_growth)
    terms = last - first + 1
    endless = jnp.isinf(g)
    finite = jnp.where(endless, 1.0, g)
    value = math.log(terms) - first * finite + _log_mean_decay(terms * finite) - _log_mean_decay(finite)
    limit = jnp.where(g > 0, -math.inf if first else 0.0, math.inf if last else 0.0)
    return jnp.where(endless, limit, value)


def log_cumulative_bound(log_first_error: ArrayLike, log_growth: ArrayLike, rounds: int) -> Float[Array, "..."]:
    """The log of `cumulative_bound`, which does not overflow where C^-T does.

    A bound on the mean-field cumulative error only for C > 1, like `cumulative_bound`.

    Args:
        log_first_error: ln((gamma^2 tr(Sigma^-1) + d)/n_0), any real number.
        log_growth: ln C, any real number.
        rounds: T, number of releases after release 0, at least 1. Static.

    Returns:
        The log of the bound.

    Raises:
        ValueError: If `rounds` is not an integer of at least 1.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", log of eq (23).
    """
    log_first_error, log_growth = as_floats(log_first_error=log_first_error, log_growth=log_growth)
    rounds = as_count(rounds, "rounds", low=1)
    return log_first_error + log_geometric_sum(log_growth, first=1, last=rounds)


def cumulative_bound(first_error: ArrayLike, growth: ArrayLike, rounds: int) -> Float[Array, "..."]:
    """An upper bound on the summed expected error of releases 1..T: first_error (C^-1 + ... + C^-T).

    A bound on the mean-field cumulative error if C > 1: growth then only accelerates. For C < 1 it is no
    bound (the population shrinks faster than C^t; the mean-field error is larger), at C = 1 an equality; the
    value is still defined and smooth, so that it can serve as an objective. It does not know of a floor or a
    cap: with a cap it is not a bound either.

    Args:
        first_error: (gamma^2 tr(Sigma^-1) + d)/n_0, in [0, inf].
        growth: C, growth factor of release 0, in [0, inf).
        rounds: T, number of releases after release 0, at least 1. Static.

    Returns:
        The bound: T first_error at C = 1; infinite, with derivative 0, at C = 0 and where it overflows
        (`log_cumulative_bound` does not).

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 9, eq (16) and (23). Its
        rounds 1..T leave out release 0, though Algorithm 1 counts that as its first.

    Example:
        >>> round(float(cumulative_bound(0.2, 1.0, 10)), 4)
        2.0
    """
    first_error, growth = arguments(first_error=first_error, growth=growth)
    rounds = as_count(rounds, "rounds", low=1)
    alive = growth > 0
    log_growth = jnp.where(alive, jnp.log(jnp.where(alive, growth, 1.0)), -jnp.inf)
    log_sum = log_geometric_sum(log_growth, first=1, last=rounds)
    fits = log_sum < math.log(float(jnp.finfo(log_sum.dtype).max))
    # exp would overflow to the same infinity, but its derivative to inf - inf
    return jnp.where(fits, first_error * jnp.exp(jnp.where(fits, log_sum, 0.0)), jnp.inf)


def zero_noise_error(
    population: ArrayLike, leave: ArrayLike, rounds: ArrayLike, *, dim: ArrayLike
) -> Float[Array, "..."]:
    """The expected error of release t as the noise vanishes: d/(n_0 (1 - q)^t).

    Exact under the mean-field approximation without a floor, where every user is leaked at every release; it
    diverges with t for every q > 0. Of the true expected error it is a lower bound as long as no floor acts;
    a floor of f participants holds the error at d/f at most.

    Args:
        population: n_0, in [0, inf).
        leave: q, probability that a leaked user leaves, in [0, 1].
        rounds: t, number of releases made before this one, in [0, inf).
        dim: d, dimension of a record, at least 1.

    Returns:
        The error: d/n_0 at t = 0; for q = 1 infinite from t > 0 on, with derivative 0 there.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Corollary 1. Spared users
        recruit: without spared users the recruit probability does not matter.
    """
    n, q, t, d = arguments(population=population, leave=leave, rounds=rounds, dim=dim)
    stays = q < 1
    shrunk = jnp.exp(-t * jnp.log1p(-jnp.where(stays, q, 0.0)))
    return per_user(d * jnp.where(stays, shrunk, jnp.where(t > 0, jnp.inf, 1.0)), n)


def long_run_error_bound(
    first_error: ArrayLike, growth: ArrayLike, rounds: ArrayLike, leave: ArrayLike, recruit: ArrayLike
) -> Float[Array, "..."]:
    """An upper bound on the expected error of release t: kappa first_error C^-t.

    kappa is `kantorovich_factor`.

    A bound under the mean-field approximation if C > 1 and no cap acts; it then tends to 0 geometrically. The
    rate 1/C is fastest, 1/(1 + r), in the limit of infinite noise, though the error's numerator is then
    infinite too. For C < 1 it is no bound, whatever it evaluates to.

    Args:
        first_error: (gamma^2 tr(Sigma^-1) + d)/n_0, in [0, inf].
        growth: C, growth factor of release 0, in [0, inf).
        rounds: t, number of releases made before this one, in [0, inf).
        leave: q, probability that a leaked user leaves, in [0, 1].
        recruit: r, probability that a spared user recruits one, in [0, 1].

    Returns:
        The bound; infinite at q = 1 (kappa is), at C = 0 for t > 0, and where C^-t overflows.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Corollary 2.
    """
    first_error, growth, t, q, r = arguments(
        first_error=first_error, growth=growth, rounds=rounds, leave=leave, recruit=recruit
    )
    alive, stays = growth > 0, q < 1
    decay = jnp.exp(-t * jnp.log(jnp.where(alive, growth, 1.0)))
    bound = kantorovich_factor(jnp.where(stays, q, 0.0), r) * first_error * decay
    return jnp.where(stays & (alive | (t == 0)), bound, jnp.inf)


def clipping_bias_bound(
    clip_radius: ArrayLike, *, mean_norm: ArrayLike, covariance_eigenvalues: Float[ArrayLike, "*batch dim"]
) -> Float[Array, "..."]:
    """An upper bound on the Mahalanobis norm of the bias that clipping causes, for Gaussian records.

    B(R) = sqrt(lambda_max(Sigma^-1)) M exp(-(R - M)^2/(4 lambda_max(Sigma))), M^2 = ||mu||^2 + tr(Sigma).

    A bound for every R. For R <= M the exponential is left out: the tail bound behind it needs R > M, and
    with it the value would fall below the true bias.

    Args:
        clip_radius: R, in (0, inf], in the unit of the records.
        mean_norm: ||mu||, in [0, inf).
        covariance_eigenvalues: Eigenvalues of Sigma along the last axis, positive.

    Returns:
        B(R), without unit; 0 without clipping.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (26), which is printed without
        the condition R > M that its proof uses.
    """
    radius, norm, eigenvalues = arguments(
        clip_radius=clip_radius, mean_norm=mean_norm, covariance_eigenvalues=covariance_eigenvalues
    )
    size = jnp.sqrt(norm**2 + eigenvalues.sum(-1))
    beyond = jnp.maximum(radius - size, 0.0)
    decay = jnp.exp(-(beyond**2) / (4 * eigenvalues.max(-1)))
    return size / jnp.sqrt(eigenvalues.min(-1)) * decay


def sampling_deviation_bound(
    failure_probability: ArrayLike,
    *,
    clip_radius: ArrayLike,
    covariance_eigenvalues: Float[ArrayLike, "*batch dim"],
) -> Float[Array, "..."]:
    """sqrt(n) times what the mean of n clipped records exceeds with probability at most delta/2 (Pinelis).

    V = 2R sqrt(2 lambda_max(Sigma^-1) ln(4/delta)): the Mahalanobis distance of the sample mean from its
    expectation.

    An upper bound for independent records of any law clipped to R.

    Args:
        failure_probability: delta, in (0, 1).
        clip_radius: R, in (0, inf].
        covariance_eigenvalues: Eigenvalues of Sigma along the last axis, positive.

    Returns:
        V, without unit; infinite without clipping.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (27).
    """
    delta, radius, eigenvalues = arguments(
        failure_probability=failure_probability,
        clip_radius=clip_radius,
        covariance_eigenvalues=covariance_eigenvalues,
    )
    return 2 * radius * jnp.sqrt(2 * (math.log(4) - jnp.log(delta)) / eigenvalues.min(-1))


def noise_deviation_bound(
    failure_probability: ArrayLike,
    *,
    noise_scale: ArrayLike,
    covariance_eigenvalues: Float[ArrayLike, "*batch dim"],
) -> Float[Array, "..."]:
    """sqrt(n) times what the noise of a release exceeds with probability at most delta/2 (Laurent, Massart).

    gamma sqrt(lambda_max(Sigma^-1) K) with K = d + 2 sqrt(d ln(2/delta)) + 2 ln(2/delta), in Mahalanobis
    norm.

    An upper bound.

    Args:
        failure_probability: delta, in (0, 1).
        noise_scale: gamma, in [0, inf].
        covariance_eigenvalues: Eigenvalues of Sigma along the last axis, positive; their number is d.

    Returns:
        The bound, without unit.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", eq (28).
    """
    delta, gamma, eigenvalues = arguments(
        failure_probability=failure_probability,
        noise_scale=noise_scale,
        covariance_eigenvalues=covariance_eigenvalues,
    )
    dim = float(eigenvalues.shape[-1])
    odds = math.log(2) - jnp.log(delta)
    return gamma * jnp.sqrt((dim + 2 * jnp.sqrt(dim * odds) + 2 * odds) / eigenvalues.min(-1))


def pac_rounds(
    error: ArrayLike,
    failure_probability: ArrayLike,
    growth: ArrayLike,
    *,
    noise_scale: ArrayLike,
    population: ArrayLike,
    clip_radius: ArrayLike,
    mean_norm: ArrayLike,
    covariance_eigenvalues: Float[ArrayLike, "*batch dim"],
) -> Float[Array, "..."]:
    """After how many rounds a release is within `error` of the mean with probability 1 - delta.

    t = ln((V + gamma sqrt(lambda_max(Sigma^-1) K))^2/(n_0 (error - B(R))^2))/ln C, with the functions
    `clipping_bias_bound`, `sampling_deviation_bound` and `noise_deviation_bound`.

    A sufficient number, usually far more than needed, if the population is at least n_0 C^t (mean field, C >
    1). Records are Gaussian. For each release on its own, not for all later releases at once.

    Args:
        error: Wanted Mahalanobis distance (not squared) of release from mean, in [0, inf].
        failure_probability: delta, in (0, 1).
        growth: C, growth factor of release 0, in [0, inf).
        noise_scale: gamma, in [0, inf], in the unit of the records.
        population: n_0, in [0, inf).
        clip_radius: R, in (0, inf].
        mean_norm: ||mu||, in [0, inf).
        covariance_eigenvalues: Eigenvalues of Sigma along the last axis, positive; their number is d.

    Returns:
        The real number of rounds, to be rounded up; 0, with derivative 0, if release 0 already qualifies.
        Infinite where the theorem is silent: C <= 1, error <= B(R), no clipping, no users.

    Raises:
        ValueError: If an argument is outside its range.

    Source:
        "Performative Privacy: When Differential Privacy Maximizes Utility", Theorem 4, eq (24), with B(R)
        corrected for small R.
    """
    error, delta, growth, gamma, n, radius, norm, eigenvalues = arguments(
        error=error,
        failure_probability=failure_probability,
        growth=growth,
        noise_scale=noise_scale,
        population=population,
        clip_radius=clip_radius,
        mean_norm=mean_norm,
        covariance_eigenvalues=covariance_eigenvalues,
    )
    margin = error - clipping_bias_bound(radius, mean_norm=norm, covariance_eigenvalues=eigenvalues)
    deviation = sampling_deviation_bound(
        delta, clip_radius=radius, covariance_eigenvalues=eigenvalues
    ) + noise_deviation_bound(delta, noise_scale=gamma, covariance_eigenvalues=eigenvalues)
    applies = (margin > 0) & (growth > 1) & (n > 0)
    margin, growth = jnp.where(applies, margin, 1.0), jnp.where(applies, growth, 2.0)
    surplus = 2 * jnp.log(deviation / margin) - jnp.log(jnp.where(applies, n, 1.0))
    return jnp.where(applies, jnp.maximum(surplus, 0.0) / jnp.log(growth), jnp.inf)


def _log_mean_decay(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """ln((1 - exp(-x))/x), the log of the mean of exp(-x u) over u in [0, 1], for every finite x.

    Near 0 by its Taylor series: there the quotient is 0/0 and autodiff through a `where` would miss the
    derivative -1/2.
    """
    near = jnp.abs(x) < 1
    small = jnp.where(near, x, 0.0)
    power_sum = jnp.zeros_like(small)
    for coefficient in reversed(_SERIES):
        power_sum = (power_sum + coefficient) * small**2
    large = jnp.where(near, 1.0, jnp.abs(x))
    far = jnp.maximum(-x, 0.0) + jnp.log1p(-jnp.exp(-large)) - jnp.log(large)
    return jnp.where(near, power_sum - small / 2, far)
