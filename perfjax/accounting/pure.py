"""Pure (ε-) differential privacy: randomized response, the worst case of all, over one release or many."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy.special import gammaln

from perfjax._check import as_choice, as_count, as_floats, in_range
from perfjax.accounting._arguments import as_same_shape

__all__ = ["compose_basic", "pure_delta", "pure_epsilon", "pure_renyi", "pure_rho"]


def pure_rho(epsilon: ArrayLike, *, conversion: str = "tight") -> Float[Array, "..."]:
    """The zCDP parameter of an ε-DP release.

    tight:         ρ = ε tanh(ε/2), reached by randomized response;
    classic:       ρ = ε²/2;
    bounded-range: ρ = ε²/8.

    Args:
        epsilon: ε in [0, ∞].
        conversion: "tight", never above "classic"; or "classic"; or "bounded-range", which holds *only* for a
            release whose privacy loss has a range of ε (the exponential mechanism, report-noisy-max with
            exponential or Gumbel noise), not for randomized response.

    Returns:
        ρ in [0, ∞].

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: classic: Bun, Steinke, "Concentrated Differential Privacy", Proposition 1.4. Bounded range: Cesar,
        Rogers, "Bounding, Concentrating, and Truncating". Tight: D_α/α of randomized response
        (`pure_renyi`) falls as α rises, because log cosh √w is concave in w; its limit at α -> 1 is
        ε tanh(ε/2), and every ε-DP release is a function of randomized response.

    Example:
        >>> print(f"{pure_rho(2.0):.4f} {pure_rho(2.0, conversion='classic'):.4f}")
        1.5232 2.0000
    """
    as_choice(conversion, "conversion", ("tight", "classic", "bounded-range"))
    (epsilon,) = as_floats(epsilon=epsilon)
    epsilon = in_range(epsilon, "epsilon", 0.0)
    if conversion == "tight":
        return _kullback_leibler(epsilon)
    finite = jnp.isfinite(epsilon)
    return jnp.where(finite, jnp.where(finite, epsilon, 0) ** 2 / (2 if conversion == "classic" else 8), jnp.inf)


def pure_renyi(*, orders: ArrayLike, epsilon: ArrayLike) -> Float[Array, "..."]:
    """The Rényi divergence of randomized response, which bounds that of every ε-DP release.

    D_α = log(cosh((α - 1/2) ε) / cosh(ε/2)) / (α - 1).

    Args:
        orders: α in [1, ∞].
        epsilon: ε in [0, ∞]; broadcast against the orders.

    Returns:
        D_α in [0, ε]; ε tanh(ε/2) at α = 1 and ε at α = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: Mironov, "Rényi Differential Privacy", Proposition 5, rewritten so that nothing cancels as α -> 1
        or ε -> 0 and nothing overflows.
    """
    orders, epsilon = as_same_shape(orders=orders, epsilon=epsilon)
    orders, epsilon = in_range(orders, "orders", 1.0), in_range(epsilon, "epsilon", 0.0)
    # Where exp(-ε) is 0, or the order or its product with ε infinite, the divergence is ε.
    ordinary = (orders > 1) & ((orders - 1) * epsilon < jnp.inf) & (orders < jnp.inf) & (jnp.exp(-epsilon) > 0)
    orders_, epsilon_ = jnp.where(ordinary, orders, 2), jnp.where(ordinary, epsilon, 1)
    divergence = _log_cosh_ratio(epsilon_ / 2, (orders_ - 1) * epsilon_) / (orders_ - 1)
    return jnp.where(ordinary, divergence, jnp.where(orders == 1, _kullback_leibler(epsilon), epsilon))


def pure_delta(*, per_release: ArrayLike, epsilon: ArrayLike, releases: int = 1) -> Float[Array, "..."]:
    """The δ of several ε₀-DP releases together at a given ε.

    δ = Σ_j C(T, j) max(0, p^(T-j) q^j - e^ε p^j q^(T-j)), p = 1 - q = e^ε₀/(1 + e^ε₀).

    Args:
        per_release: ε₀ in [0, ∞], of each release.
        epsilon: ε in [0, ∞], for all releases together.
        releases: T, how many (also adaptive) releases.

    Returns:
        δ in [0, 1]: exact for randomized response, an upper bound for any other ε₀-DP release. 0 if ε ≥ T ε₀;
        else 1 if ε₀ = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", Theorem 3.3.

    Example:
        >>> print(f"{pure_delta(per_release=0.1, epsilon=1.0, releases=50):.4f}")
        0.0383
    """
    releases = as_count(releases, "releases", low=1)
    per_release, epsilon = as_same_shape(per_release=per_release, epsilon=epsilon)
    epsilon, per_release = in_range(epsilon, "epsilon", 0.0), in_range(per_release, "per_release", 0.0)
    return _delta(epsilon, per_release, releases)


def pure_epsilon(*, per_release: ArrayLike, delta: ArrayLike, releases: int = 1) -> Float[Array, "..."]:
    """The ε of several ε₀-DP releases together at a given δ: the inverse of `pure_delta` in ε.

    Args:
        per_release: ε₀ in [0, ∞], of each release.
        delta: δ in [0, 1], for all releases together.
        releases: T, how many (also adaptive) releases.

    Returns:
        ε in [0, T ε₀]: the least for randomized response, an upper bound for any other ε₀-DP release.
        0 if δ = 1; else T ε₀ (basic composition) if δ = 0 or ε₀ = ∞, with a zero derivative in δ.
        Continuous, with kinks.

    Raises:
        ValueError: if an argument is out of range.

    Source: as `pure_delta`, inverted without a search: with A_m, B_m the probabilities of the m + 1 largest
        privacy losses under the two records, δ = max_m A_m - e^ε B_m, so ε = max_m log((A_m - δ)/B_m).
    """
    releases = as_count(releases, "releases", low=1)
    per_release, delta = as_same_shape(per_release=per_release, delta=delta)
    delta, per_release = in_range(delta, "delta", 0.0, 1.0), in_range(per_release, "per_release", 0.0)
    return _epsilon(delta, per_release, releases)


def compose_basic(
    *, epsilon: ArrayLike, delta: ArrayLike = 0.0, axis: int = -1
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The (ε, δ) of several (also adaptive) releases together by basic composition: both add.

    Args:
        epsilon: ε_t in [0, ∞], one per release.
        delta: δ_t in [0, 1], one per release; 0 for pure ε_t-DP.
        axis: along which the releases lie.

    Returns:
        ε in [0, ∞] and δ in [0, 1].

    Raises:
        ValueError: if an argument is out of range.

    Source: Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", Theorem 3.16.
    """
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    epsilon, delta = in_range(epsilon, "epsilon", 0.0), in_range(delta, "delta", 0.0, 1.0)
    return jnp.sum(epsilon, axis), jnp.minimum(jnp.sum(delta, axis), 1)


@partial(jax.jit, static_argnums=2)
def _delta(epsilon, per_release, releases):
    ordinary = (epsilon < jnp.inf) & (releases * per_release < jnp.inf)
    epsilon_, per_release_ = jnp.where(ordinary, epsilon, 0), jnp.where(ordinary, per_release, 1)
    loss, log_one, size = _privacy_loss(per_release_, releases)
    gap = jnp.maximum(loss - epsilon_[..., None], 0)
    # δ is a bound: its terms are rounded up by what rounding may have cost, those of log C(T, j) in float64.
    rounding = 4 * float(jnp.finfo(loss.dtype).eps) * (2 + jax.lax.stop_gradient(size))
    rounding = rounding + 4 * float(np.finfo(float).eps) * float(gammaln(releases + 1))
    delta = jnp.sum(jnp.exp(log_one + rounding) * _one_minus_exp(gap), -1)
    delta = jnp.where(delta < 1, delta, 1)
    return jnp.where(ordinary, delta, jnp.where(jnp.isinf(epsilon), 0, 1).astype(delta.dtype))


@partial(jax.jit, static_argnums=2)
def _epsilon(delta, per_release, releases):
    ordinary = (delta > 0) & (delta < 1) & (releases * per_release < jnp.inf)
    delta_, per_release_ = jnp.where(ordinary, delta, 0.5), jnp.where(ordinary, per_release, 1)
    loss, log_one, _ = _privacy_loss(per_release_, releases)
    log_other = log_one - loss
    cumulative = partial(jax.lax.cumlogsumexp, axis=delta.ndim)
    every = _epsilon_of_set(delta_[..., None], *map(cumulative, jax.lax.stop_gradient((log_one, log_other))))
    # The best set of outputs, found once, carries the derivative: no scan is differentiated.
    inside = jnp.arange(releases + 1) <= jnp.argmax(every, -1, keepdims=True)
    log_a, log_b = (jax.nn.logsumexp(x, -1, where=inside) for x in (log_one, log_other))
    epsilon = jnp.maximum(_epsilon_of_set(delta_, log_a, log_b), 0)
    return jnp.where(ordinary, epsilon, jnp.where(delta == 1, 0, releases * per_release))


def _epsilon_of_set(delta, log_a, log_b):
    """log((A - δ)/B), or 0 where A ≤ δ."""
    log_share = jnp.log(delta) - log_a
    reached = log_share < 0
    # log(-expm1(x)) would be as good a value, but JAX derives expm1 as expm1(x) + 1, which is 0 for small δ.
    margin = jnp.log1p(-jnp.exp(jnp.where(reached, log_share, -1)))
    return jnp.where(reached, log_a - log_b + margin, 0)


def _privacy_loss(per_release, releases):
    """The privacy losses (T - 2j) ε₀, the log masses log C(T, j) p^(T-j) q^j, and the size of the terms of these.

    At small ε₀, log C(T, j) - T log 2 and T log cosh(ε₀/2) are both small; the powers of p and q they stand for are
    not. At large ε₀ these powers are what is left, and T log cosh(ε₀/2) cancels T ε₀/2.
    """
    j = np.arange(releases + 1)
    ways = gammaln(releases + 1) - gammaln(j + 1) - gammaln(releases - j + 1)
    fair = (ways - releases * math.log(2)).astype(per_release.dtype)
    ways, j = ways.astype(per_release.dtype), j.astype(per_release.dtype)
    epsilon = per_release[..., None]
    loss = (releases - 2 * j) * epsilon
    small = jnp.minimum(epsilon, 1)
    spread = releases * _log_cosh_ratio(jnp.zeros_like(small), small / 2)
    near = fair - spread + (releases / 2 - j) * small
    powers = releases * jnp.log1p(jnp.exp(-epsilon)) + j * epsilon
    is_near = epsilon < 1
    size = jnp.where(is_near, jnp.abs(fair) + spread + jnp.abs(loss) / 2, jnp.abs(ways) + powers)
    return loss, jnp.where(is_near, near, ways - powers), size


@jax.custom_jvp
def _one_minus_exp(x):
    return -jnp.expm1(-x)


@_one_minus_exp.defjvp
def _one_minus_exp_derivative(primals, tangents):
    # JAX's own rule, 1 - (1 - exp(-x)), has no digits left for large x.
    return _one_minus_exp(*primals), jnp.exp(-primals[0]) * tangents[0]


@jax.jit
def _kullback_leibler(epsilon):
    """ε tanh(ε/2), the Rényi divergence of randomized response at order 1."""
    finite = jnp.isfinite(epsilon)
    epsilon_ = jnp.where(finite, epsilon, 0)
    return jnp.where(finite, epsilon_ * jnp.tanh(epsilon_ / 2), jnp.inf)


@jax.jit
def _log_cosh_ratio(x, step):
    """log(cosh(x + step)/cosh(x)) for x, step ≥ 0."""
    tanh = jnp.tanh(x)
    small = jnp.minimum(step, 1)
    near = jnp.log1p(2 * jnp.sinh(small / 2) ** 2 + tanh * jnp.sinh(small))
    far = step + jnp.log((1 + tanh) / 2 + (1 - tanh) / 2 * jnp.exp(-2 * step))
    return jnp.where(step < 1, near, far)
