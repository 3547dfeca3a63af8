"""Zero-concentrated differential privacy (zCDP) and (ε, δ), both ways.

A ρ-zCDP release has Rényi divergence at most αρ at every order α > 1. Each order certifies (ε, δ) pairs, and
the best order for a given pair is α = 1 + s, where

    log(1/δ) = ρ s² + log(1 + s)        and        ε = ρ (1 + 2s) - log(1 + 1/s)

trace the whole boundary as s runs over (0, ∞). Given two of ρ, ε, δ, one root s gives the third. It is then moved to
the safe side, ε and δ up and ρ down, by what rounding may have cost: a bound is never below the exact one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_choice, as_floats, in_range
from perfjax._square_root import square_root
from perfjax.accounting._arguments import as_same_shape
from perfjax.accounting._roots import increasing_root

__all__ = ["CONVERSIONS", "compose_rho", "zcdp_delta", "zcdp_epsilon", "zcdp_rho"]

CONVERSIONS = ("tight", "classic")


def zcdp_epsilon(*, rho: ArrayLike, delta: ArrayLike, conversion: str = "tight") -> Float[Array, "..."]:
    """An ε for which ρ-zCDP implies (ε, δ)-DP.

    tight:   ε = min_α αρ + log(1 - 1/α) + log(1/(αδ))/(α - 1), not below 0;
    classic: ε = ρ + 2√(ρ log(1/δ)).

    Args:
        rho: ρ in [0, ∞].
        delta: δ in [0, 1].
        conversion: "tight", never above "classic"; or "classic".

    Returns:
        ε in [0, ∞]. 0 if ρ = 0; else 0 (classic: ρ) if δ = 1; else ∞ (zero gradient) if ρ = ∞ or δ = 0.
        Classic: the derivatives in ρ at 0 and in δ at 1 are infinite and given as 0 and 0.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: tight: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", Corollary 13;
        the order is found by Newton's method instead of a search over orders. Classic: Bun, Steinke,
        "Concentrated Differential Privacy", Proposition 1.3.

    Example:
        >>> print(f"{zcdp_epsilon(rho=0.1, delta=1e-5):.4f}")
        1.9142
        >>> print(f"{zcdp_epsilon(rho=0.1, delta=1e-5, conversion='classic'):.4f}")
        2.2460
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    rho, delta = as_same_shape(rho=rho, delta=delta)
    rho, delta = in_range(rho, "rho", 0.0), in_range(delta, "delta", 0.0, 1.0)
    return _tight_epsilon(rho, delta) if conversion == "tight" else _classic_epsilon(rho, delta)


def zcdp_delta(*, rho: ArrayLike, epsilon: ArrayLike, conversion: str = "tight") -> Float[Array, "..."]:
    """A δ for which ρ-zCDP implies (ε, δ)-DP.

    tight:   δ = min_α exp((α - 1)(αρ - ε)) (1 - 1/α)^α / (α - 1);
    classic: δ = exp(-(ε - ρ)²/(4ρ)), and 1 where ε ≤ ρ.

    Args:
        rho: ρ in [0, ∞].
        epsilon: ε in [0, ∞].
        conversion: "tight", never above "classic"; or "classic".

    Returns:
        δ in [0, 1]. 0 if ρ = 0; else 1 if ρ = ∞; else 0 if ε = ∞.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: as `zcdp_epsilon`.
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    rho, epsilon = as_same_shape(rho=rho, epsilon=epsilon)
    rho, epsilon = in_range(rho, "rho", 0.0), in_range(epsilon, "epsilon", 0.0)
    return _tight_delta(rho, epsilon) if conversion == "tight" else _classic_delta(rho, epsilon)


def zcdp_rho(*, epsilon: ArrayLike, delta: ArrayLike, conversion: str = "tight") -> Float[Array, "..."]:
    """The largest ρ for which the conversion certifies (ε, δ)-DP: the inverse of `zcdp_epsilon` in ρ.

    classic: ρ = (√(log(1/δ) + ε) - √log(1/δ))².

    Args:
        epsilon: ε in [0, ∞].
        delta: δ in [0, 1].
        conversion: "tight", never below "classic"; or "classic".

    Returns:
        ρ in [0, ∞]. ∞ if ε = ∞; else ∞ (classic: ε) if δ = 1; else 0 (with a zero gradient) if δ = 0.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: as `zcdp_epsilon`; the classic inverse is written as (ε/(√(l + ε) + √l))², which does not cancel.

    Example:
        >>> print(f"{zcdp_rho(epsilon=1.0, delta=1e-5, conversion='classic'):.6f}")
        0.020820
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    epsilon, delta = as_same_shape(epsilon=epsilon, delta=delta)
    epsilon, delta = in_range(epsilon, "epsilon", 0.0), in_range(delta, "delta", 0.0, 1.0)
    return _tight_rho(epsilon, delta) if conversion == "tight" else _classic_rho(epsilon, delta)


def compose_rho(rho: ArrayLike, *, axis: int = -1) -> Float[Array, "..."]:
    """The zCDP parameter of several (also adaptive) releases together, ρ = Σ ρ_t.

    Args:
        rho: ρ_t in [0, ∞], one per release.
        axis: along which the releases lie.

    Returns:
        ρ in [0, ∞].

    Raises:
        ValueError: if an argument is out of range.

    Source: Bun, Steinke, "Concentrated Differential Privacy", Lemma 1.7.
    """
    (rho,) = as_floats(rho=rho)
    return jnp.sum(in_range(rho, "rho", 0.0), axis)


@jax.jit
def _tight_epsilon(rho, delta):
    ordinary = (rho > 0) & (rho < jnp.inf) & (delta > 0) & (delta < 1)
    rho_, delta_ = jnp.where(ordinary, _normal(rho), 1), jnp.where(ordinary, delta, 0.5)
    level = -jnp.log(delta_)
    log_s = _best_order(jnp.log(rho_), level)
    epsilon = _certified_epsilon(log_s, rho_, level) + _rounding_of_epsilon(log_s, rho_, level)
    epsilon = jnp.where(epsilon > 0, epsilon, 0)
    return jnp.where(ordinary, epsilon, jnp.where((rho == 0) | (delta == 1), 0, jnp.inf))


@jax.jit
def _tight_delta(rho, epsilon):
    rho_ = _normal(rho)
    ordinary = _delta_matters(rho_, epsilon)
    rho_, epsilon_ = jnp.where(ordinary, rho_, 1), jnp.where(ordinary, epsilon, 1)
    low, high = _bracket_at_epsilon(rho_, epsilon_)
    log_s = increasing_root(_excess_epsilon, low, high, (rho_, epsilon_))
    s = jnp.exp(log_s)
    spent, gained = rho_ * (1 + s), epsilon_ + jax.nn.softplus(-log_s)
    log_delta = s * (spent - gained) - jax.nn.softplus(log_s)
    delta = jnp.exp(log_delta + _rounding(1 + s * (spent + gained) + jax.nn.softplus(log_s)))
    delta = jnp.where(delta < 1, delta, 1)
    return jnp.where(ordinary, delta, jnp.where(jnp.isinf(rho), 1.0, 0.0).astype(rho.dtype))


@jax.jit
def _tight_rho(epsilon, delta):
    ordinary = (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    epsilon_, delta_ = jnp.where(ordinary, epsilon, 1), jnp.where(ordinary, delta, 0.5)
    # The classic conversion certifies less, and at ε = 0 the answer is about 1.4 δ².
    start = jnp.maximum(jnp.log(_classic_rho(epsilon_, delta_)), 2 * jnp.log(delta_))
    high = jnp.full_like(start, jnp.inf)
    log_rho = increasing_root(_excess_boundary, jax.lax.stop_gradient(start), high, (epsilon_, -jnp.log(delta_)))
    log_s = _best_order(log_rho, -jnp.log(delta_))
    rho = jnp.exp(log_rho)
    # What rounding may have added to ε, over dε/d(log ρ) = ρ (1 + s); the budget is rounded down.
    step = rho * (1 + jnp.exp(log_s))
    rounded = _rounding_of_epsilon(log_s, rho, -jnp.log(delta_)) / jnp.where(step > 0, step, 1)
    rounded = rounded + _rounding(1 + jnp.abs(log_rho))
    limit = jnp.where((epsilon < jnp.inf) & (delta == 0), 0, jnp.inf).astype(delta.dtype)
    return jnp.where(ordinary, rho * jnp.maximum(1 - jax.lax.stop_gradient(rounded), 0), limit)


@jax.jit
def _classic_epsilon(rho, delta):
    unbounded = jnp.isinf(rho) | ((delta == 0) & (rho > 0))
    rho_ = jnp.where(unbounded, 0, rho)
    product = rho_ * -jnp.log(jnp.where(delta > 0, delta, 1))
    # Exact at δ = 1, where the bound is ρ itself.
    rounding = _rounding((product > 0).astype(rho_.dtype))
    return jnp.where(unbounded, jnp.inf, (rho_ + 2 * square_root(product)) * (1 + rounding))


@jax.jit
def _classic_delta(rho, epsilon):
    rho_ = _normal(rho)
    ordinary = _delta_matters(rho_, epsilon)
    rho_ = jnp.where(ordinary, rho_, 1)
    excess = jnp.where(ordinary, epsilon, 1) - rho_
    positive = excess > 0
    root = jnp.where(positive, excess, 0) / 2 / jnp.sqrt(rho_)
    level = root * root
    limit = jnp.where(jnp.isinf(rho), 1.0, 0.0).astype(rho.dtype)
    delta = jnp.where(positive, jnp.exp(-level + _rounding(1 + level)), 1)
    return jnp.where(ordinary, jnp.where(delta < 1, delta, 1), limit)


@jax.jit
def _classic_rho(epsilon, delta):
    ordinary = (epsilon > 0) & (epsilon < jnp.inf) & (delta > 0) & (delta < 1)
    epsilon_, level = jnp.where(ordinary, epsilon, 1), -jnp.log(jnp.where(ordinary, delta, 0.5))
    rho = (epsilon_ / (jnp.sqrt(level + epsilon_) + jnp.sqrt(level))) ** 2 * (1 - _rounding(jnp.ones_like(level)))
    limit = jnp.where((delta == 0) & (epsilon < jnp.inf), 0, epsilon)
    at_zero = (epsilon == 0) & (delta < 1)  # ρ falls like ε² there, so the gradient is 0
    return jnp.where(ordinary, rho, jnp.where(at_zero, 0, limit))


def _delta_matters(rho, epsilon):
    """Whether δ is neither a limit nor, by the classic conversion, below e^-1600: 0, and so are its derivatives."""
    return (rho > 0) & (rho < jnp.inf) & (epsilon < jnp.inf) & ((epsilon - rho) / 2 < 40 * jnp.sqrt(rho))


def _normal(rho):
    """ρ, but no positive one below the least normal number: less may count as 0, and more is on the safe side."""
    tiny = jnp.finfo(rho.dtype).tiny
    return jnp.where((rho > 0) & (rho < tiny), tiny, rho)  # not a maximum, whose derivative is 0 times infinity there


def _rounding(size):
    """What rounding may add to a sum of terms of this size. Bounds are moved by it to the safe side."""
    return jax.lax.stop_gradient(2 * float(jnp.finfo(size.dtype).eps) * size)


def _certified_epsilon(log_s, rho, level):
    """The ε that order 1 + s certifies at level = log(1/δ): whether or not s is the best, it holds."""
    return rho * (1 + jnp.exp(log_s)) - jax.nn.softplus(-log_s) + (level - jax.nn.softplus(log_s)) * jnp.exp(-log_s)


def _rounding_of_epsilon(log_s, rho, level):
    """What rounding may take from `_certified_epsilon`; that of log δ is one of `level`."""
    terms = rho * (1 + jnp.exp(log_s)) + jax.nn.softplus(-log_s)
    return _rounding(terms + (level + jax.nn.softplus(log_s)) * jnp.exp(-log_s))


def _best_order(log_rho, level):
    """log s of the best order for ρ and level = log(1/δ)."""
    # Both terms of the residual are at most `level`. It is convex in log s: Newton's method comes from above.
    start = jax.lax.stop_gradient(jnp.minimum((jnp.log(level) - log_rho) / 2, jnp.log(jnp.expm1(level))))
    return increasing_root(_excess_level, start, jnp.full_like(start, jnp.inf), (log_rho, level))


def _boundary(log_rho, level):
    """ε at the best order for ρ and level = log(1/δ); -log(1/(1 - δ)) < 0 as ρ -> 0."""
    return _certified_epsilon(_best_order(log_rho, level), jnp.exp(log_rho), level)


def _excess_level(log_s, log_rho, level):
    return _log_inverse_delta(log_s, log_rho) - level


def _excess_epsilon(log_s, rho, epsilon):
    return _epsilon_at(log_s, rho) - epsilon


def _excess_boundary(log_rho, epsilon, level):
    return _boundary(log_rho, level) - epsilon


def _log_inverse_delta(log_s, log_rho):
    return jnp.exp(2 * log_s + log_rho) + jax.nn.softplus(log_s)


def _epsilon_at(log_s, rho):
    return rho * (1 + 2 * jnp.exp(log_s)) - jax.nn.softplus(-log_s)


def _bracket_at_epsilon(rho, epsilon):
    """Bounds of log s between which ρ (1 + 2s) - ε - log(1 + 1/s) changes its sign."""
    z = jnp.maximum(2 * rho - epsilon, jnp.finfo(rho.dtype).tiny)
    below_half = jnp.minimum(-z - jnp.log(-jnp.expm1(-z)), -jnp.log(2.0).astype(rho.dtype))
    low = jnp.where(rho < 1 / 3, -jnp.log(12 * rho) / 2, below_half)
    ratio = epsilon / rho
    low = jnp.maximum(low, jnp.log(jnp.maximum(ratio - 1, 0) / 2))
    # At s = 1/(2ρ) the sign is still negative where ε is not far below ρ; `below_half` is a bound of e^-ρ there.
    near = rho - epsilon < jnp.log1p(2 * rho) - 1.01
    low = jnp.where(near, jnp.maximum(low, -jnp.log(2 * rho)), low)
    high = jnp.maximum(jnp.log(ratio), -jnp.log(rho) / 2)
    return jax.lax.stop_gradient(low), jax.lax.stop_gradient(high)
