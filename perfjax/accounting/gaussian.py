"""Gaussian differential privacy: what a Gaussian release costs, exactly."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, erfinv, ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_floats, in_range
from perfjax.accounting._arguments import as_same_shape
from perfjax.accounting._quotient import quotient
from perfjax.accounting._roots import increasing_root

__all__ = [
    "compose_mu",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "mu_from_rho",
    "rho_from_mu",
]

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Gauss-Legendre on [0, 1]. 36 nodes integrate exp(-40 x) times a polynomial to 3e-14 relative.
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(36) + np.array([[1.0], [0.0]])) / 2
_NEGLIGIBLE = 40.0  # exp(-40) = 4e-18


def rho_from_mu(mu: ArrayLike) -> Float[Array, "..."]:
    """The zCDP parameter of μ-Gaussian DP, ρ = μ²/2.

    Args:
        mu: μ in [0, ∞].

    Returns:
        ρ in [0, ∞].

    Raises:
        ValueError: if an argument is out of range.

    Source: Bun, Steinke, "Concentrated Differential Privacy", Proposition 1.6.
    """
    (mu,) = as_floats(mu=mu)
    mu = in_range(mu, "mu", 0.0)
    infinite = jnp.isinf(mu)
    return jnp.where(infinite, jnp.inf, jnp.where(infinite, 0, mu) ** 2 / 2)


def mu_from_rho(rho: ArrayLike) -> Float[Array, "..."]:
    """The Gaussian-DP parameter of a *Gaussian mechanism* that is exactly ρ-zCDP, μ = √(2ρ).

    Other mechanisms with the same ρ need not be μ-Gaussian DP.

    Args:
        rho: ρ in [0, ∞].

    Returns:
        μ in [0, ∞]. At ρ = 0 the derivative is infinite and given as 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: inverse of `rho_from_mu`.
    """
    (rho,) = as_floats(rho=rho)
    rho = in_range(rho, "rho", 0.0)
    ordinary = (rho > 0) & (rho < jnp.inf)
    limit = jnp.where(rho == 0, 0, jnp.inf).astype(rho.dtype)
    return jnp.where(ordinary, jnp.sqrt(2 * jnp.where(ordinary, rho, 1)), limit)


def compose_mu(mu: ArrayLike, *, axis: int = -1) -> Float[Array, "..."]:
    """The Gaussian-DP parameter of several (also adaptive) releases together, μ² = Σ μ_t².

    Args:
        mu: μ_t in [0, ∞], one per release.
        axis: along which the releases lie.

    Returns:
        μ in [0, ∞]. Where all μ_t are 0 the gradient, which has no limit there, is given as 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: Dong, Roth, Su, "Gaussian Differential Privacy", on composition.
    """
    (mu,) = as_floats(mu=mu)
    mu = in_range(mu, "mu", 0.0)
    # Squares of small float32 numbers vanish, and with them the loss: divide by the largest first.
    largest = jax.lax.stop_gradient(jnp.max(mu, axis, keepdims=True))
    ordinary = (largest > 0) & (largest < jnp.inf)
    scale = jnp.where(ordinary, largest, 1)
    squares = jnp.sum(jnp.where(ordinary, mu / scale, 1) ** 2, axis)
    ordinary, scale, largest = (jnp.squeeze(x, axis) for x in (ordinary, scale, largest))
    return jnp.where(ordinary, scale * jnp.sqrt(squares), largest)


def gaussian_delta(*, mu: ArrayLike, epsilon: ArrayLike) -> Float[Array, "..."]:
    """The exact δ of a μ-Gaussian-DP release at a given ε.

    δ(μ, ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

    Args:
        mu: μ in [0, ∞]; √T times that of one release for T equal ones.
        epsilon: ε in [0, ∞].

    Returns:
        δ in [0, 1], precise relative to itself however small (float64: to 1e-300, float32: to 1e-35).
        0 if μ = 0; else 1 if μ = ∞; else 0 if ε = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: Balle, Wang, "Improving the Gaussian Mechanism", Theorem 8. The code integrates
        δ = φ(a) ∫_0^∞ exp(-u²/2 + a u) (1 - exp(-μ u)) du, a = μ/2 - ε/μ, where the two terms cancel.

    Example:
        >>> print(f"{gaussian_delta(mu=0.5, epsilon=1.0):.5f}")
        0.00683
    """
    mu, epsilon = as_same_shape(mu=mu, epsilon=epsilon)
    return _delta(in_range(epsilon, "epsilon", 0.0), in_range(mu, "mu", 0.0))


def gaussian_epsilon(*, mu: ArrayLike, delta: ArrayLike) -> Float[Array, "..."]:
    """The exact ε of a μ-Gaussian-DP release at a given δ: the inverse of `gaussian_delta` in ε.

    Args:
        mu: μ in [0, ∞].
        delta: δ in [0, 1].

    Returns:
        ε in [0, ∞], the smallest that holds. 0 (with a zero gradient) if μ = 0 or δ ≥ δ(μ, 0); else ∞ (with a
        zero gradient) if δ = 0 or μ = ∞.

    Raises:
        ValueError: if an argument is out of range.

    Source: Balle, Wang, "Improving the Gaussian Mechanism", Theorem 8. Their bisection is replaced by
        Newton's method in a = μ/2 - ε/μ on the log-odds of δ, with the implicit derivative.

    Example:
        >>> print(f"{gaussian_epsilon(mu=0.5, delta=1e-5):.4f}")
        1.9931
    """
    mu, delta = as_same_shape(mu=mu, delta=delta)
    return _epsilon(in_range(delta, "delta", 0.0, 1.0), in_range(mu, "mu", 0.0))


def gaussian_mu(*, epsilon: ArrayLike, delta: ArrayLike) -> Float[Array, "..."]:
    """The largest μ for which μ-Gaussian DP implies (ε, δ)-DP: the inverse of `gaussian_delta` in μ.

    The noise this allows is Δ/μ (`noise_from_mu`): the analytic Gaussian mechanism.

    Args:
        epsilon: ε in [0, ∞].
        delta: δ in [0, 1].

    Returns:
        μ in [0, ∞]. ∞ if ε = ∞ or δ = 1; else 0 if δ = 0. At δ = 0 < ε the derivative in δ is infinite and
        given as 0.

    Raises:
        ValueError: if an argument is out of range.

    Source: Balle, Wang, "Improving the Gaussian Mechanism", Section 3. Their search is replaced as in
        `gaussian_epsilon`, in log μ.

    Example:
        >>> print(f"{gaussian_mu(epsilon=1.0, delta=1e-5):.6f}")
        0.268051
    """
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    return _mu(in_range(epsilon, "epsilon", 0.0), in_range(delta, "delta", 0.0, 1.0))


@jax.jit
def _delta(epsilon, mu):
    ordinary = (mu > 0) & _squarable(mu) & (epsilon < jnp.inf)
    epsilon_, mu_ = jnp.where(ordinary, epsilon, 1), jnp.where(ordinary, mu, 1)
    log_delta, _ = _log_profile(_position(epsilon_, mu_), mu_)
    # At μ = 0 the derivative in μ is φ(0) for ε = 0 and 0 for ε > 0: a line through the origin carries it.
    at_zero = jnp.where(epsilon == 0, mu * math.exp(-_LOG_SQRT_2PI), 0)
    at_limit = jnp.where(jnp.isinf(epsilon) & jnp.isfinite(mu), 0.0, 1.0).astype(mu.dtype)
    return jnp.where(ordinary, jnp.exp(log_delta), jnp.where(mu == 0, at_zero, at_limit))


@jax.jit
def _epsilon(delta, mu):
    finite = _squarable(mu)
    at_most = erf(jnp.where(finite, mu, 1) / math.sqrt(8))
    zero = (mu == 0) | (delta >= jnp.where(finite, at_most, 1))
    ordinary = ~zero & (delta > 0) & finite
    delta_, mu_ = jnp.where(ordinary, delta, 0.125), jnp.where(ordinary, mu, 1)
    # Φ(a) ≥ δ, so the search starts below the root, where log δ is concave.
    start = jax.lax.stop_gradient(jnp.minimum(ndtri(delta_), mu_ / 2))
    a = increasing_root(_log_odds_at_position, start, mu_ / 2, (mu_, _log_odds(delta_)))
    return jnp.where(ordinary, jnp.maximum(mu_ * (mu_ / 2 - a), 0), jnp.where(zero, 0, jnp.inf))


@jax.jit
def _mu(epsilon, delta):
    inside = (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    # From there on rounding ε/μ says more than δ does, and e^ε Φ(-μ/2 - ε/μ) < φ/μ is below rounding: δ = Φ(a).
    far = inside & (epsilon > 0.005 / float(jnp.finfo(epsilon.dtype).eps) ** 2)
    ordinary = inside & ~far
    epsilon_, delta_ = jnp.where(ordinary, epsilon, 1), jnp.where(ordinary, delta, 0.125)
    # Two lower bounds of μ: Φ(a) ≥ δ, and δ(μ, 0) ≥ δ. The second is the answer at ε = 0.
    a = ndtri(delta_)
    root = jnp.hypot(a, jnp.sqrt(2 * epsilon_))
    least = jnp.where(a < 0, 2 * epsilon_ / (root + jnp.abs(a)), root + a)
    least = jax.lax.stop_gradient(jnp.maximum(least, math.sqrt(8) * erfinv(delta_)))
    params = (least, epsilon_, _log_odds(delta_))
    log_ratio = increasing_root(_log_odds_at_mu, jnp.zeros_like(a), jnp.full_like(a, jnp.inf), params)
    # At ε = δ = 0 the derivative in δ is 1/φ(0).
    at_zero = jnp.where(epsilon == 0, delta * math.exp(_LOG_SQRT_2PI), 0)
    at_limit = jnp.where((epsilon < jnp.inf) & (delta == 0), at_zero, jnp.inf)
    a = ndtri(jnp.where(far, delta, 0.125))
    at_far = a + jnp.sqrt(a * a + 2 * jnp.where(far, epsilon, 1))
    return jnp.where(ordinary, least * jnp.exp(log_ratio), jnp.where(far, at_far, at_limit))


def _squarable(mu):
    """Whether μ² is finite. From there on μ is as good as infinite."""
    return mu < math.sqrt(float(jnp.finfo(mu.dtype).max))


def _log_odds(delta):
    return jnp.log(delta) - jnp.log1p(-delta)


def _log_odds_at_position(a, mu, target):
    log_delta, log_rest = _log_profile(a, mu)
    return log_delta - log_rest - target


def _log_odds_at_mu(log_ratio, least, epsilon, target):
    mu = least * jnp.exp(log_ratio)
    return _log_odds_at_position(_position(epsilon, mu), mu, target)


def _position(epsilon, mu):
    """a = μ/2 - ε/μ, but at least -100, where δ < exp(-5000) is 0 in every dtype."""
    close = epsilon < mu * (mu / 2 + 100)
    return jnp.where(close, mu / 2 - quotient(epsilon, jnp.where(close, mu, 1)), -100)


def _log_profile(a, mu):
    """log δ and log(1 - δ) for 0 < μ < ∞ and a = μ/2 - ε/μ ≤ μ/2.

    δ = Φ(a) - φ(a) M(μ - a) = φ(a) (M(-a) - M(μ - a)), M the Mills ratio: e^ε has cancelled. The difference
    keeps its digits only where μ is not small beside 1 + |a|; elsewhere it is integrated as one.
    """
    log_density = -a * a / 2 - _LOG_SQRT_2PI
    below = jnp.maximum(-a, 0)
    far = _mills(mu - a)
    rest = ndtr(-a) + jnp.exp(log_density) * far
    # Each branch is evaluated everywhere, hence its arguments are held inside its own domain.
    narrow = mu <= 1 + below
    mu_, a_ = jnp.where(narrow, mu, 1), jnp.where(narrow, a, 0)
    narrow_mass = _decaying(-a_, lambda u: -jnp.expm1(-mu_[..., None] * u))
    wide_mass = _mills(below) - jnp.where(narrow, 0, far)
    wide_rest = jnp.where((a > 0) & ~narrow, rest, 0)
    wide = jnp.where(a <= 0, log_density + jnp.log(wide_mass), jnp.log1p(-wide_rest))
    return jnp.where(narrow, log_density + jnp.log(narrow_mass), wide), jnp.log(rest)


def _mills(y):
    """M(y) = (1 - Φ(y))/φ(y) for y ≥ 0. JAX's erfcx is 0 around y = 13 in float32, y = 37.5 in float64."""
    return _decaying(y, jnp.ones_like)


def _decaying(y, weight):
    """∫_0^∞ exp(-u²/2 - y u) weight(u) du for y ≥ -1/2; a sum of positive terms if the weight is positive."""
    root = jnp.sqrt(y * y + 2 * _NEGLIGIBLE)
    reach = jax.lax.stop_gradient(2 * _NEGLIGIBLE / (root + y))[..., None]  # where the exponent is -40
    u = reach * _NODES.astype(y.dtype)
    mass = jnp.exp(-u * (u / 2 + y[..., None])) * weight(u)
    return jnp.sum(reach * _WEIGHTS.astype(y.dtype) * mass, -1)
