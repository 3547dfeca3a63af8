"""Rényi differential privacy: a curve of divergences over orders, and the (ε, δ) it certifies."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_choice, as_floats, in_range
from perfjax.accounting._arguments import as_same_shape
from perfjax.accounting.zcdp import CONVERSIONS

__all__ = ["compose_renyi", "renyi_delta", "renyi_divergence", "renyi_epsilon", "renyi_from_rho"]


def renyi_from_rho(*, orders: ArrayLike, rho: ArrayLike) -> Float[Array, "..."]:
    """The Rényi divergence of a ρ-zCDP release, D_α = αρ; exact for Gaussian noise, else a bound.

    Args:
        orders: α in [1, ∞].
        rho: ρ in [0, ∞]; broadcast against the orders.

    Returns:
        D_α in [0, ∞]; 0 if ρ = 0, at every order.

    Raises:
        ValueError: if an argument is out of range.

    Source: Bun, Steinke, "Concentrated Differential Privacy", Definition 1.1 and Proposition 1.6.

    Example:
        >>> float(renyi_from_rho(orders=8.0, rho=0.5))
        4.0
    """
    orders, rho = as_same_shape(orders=orders, rho=rho)
    orders, rho = in_range(orders, "orders", 1.0), in_range(rho, "rho", 0.0)
    unbounded = (jnp.isinf(orders) | jnp.isinf(rho)) & (rho > 0)
    finite = jnp.isfinite(orders)
    return jnp.where(unbounded, jnp.inf, jnp.where(finite, orders, 0) * jnp.where(unbounded, 0, rho))


def renyi_epsilon(
    *, orders: ArrayLike, divergences: ArrayLike, delta: ArrayLike, conversion: str = "tight"
) -> Float[Array, "..."]:
    """The least ε that any order of a Rényi curve certifies at a given δ.

    tight:   ε = min_α D_α + log(1 - 1/α) + log(1/(αδ))/(α - 1), not below 0;
    classic: ε = min_α D_α + log(1/δ)/(α - 1).

    Args:
        orders: α in (1, ∞], shape [K].
        divergences: D_α in [0, ∞], shape [..., K].
        delta: δ in [0, 1], any shape that broadcasts with the leading axes of the divergences.
        conversion: "tight", never above "classic"; or "classic".

    Returns:
        ε in [0, ∞]. 0 where some D_α is 0, for the outputs are then alike. At δ = 0 only the order ∞
        certifies anything else. The gradient is that of the best order.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: tight: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", Proposition 12.
        Classic: Mironov, "Rényi Differential Privacy", Proposition 3. The bound by way of the Kullback-
        Leibler divergence, which some accountants add, is left out: it matters only where δ² > 1 - exp(-D_α).

    Example:
        >>> orders = jnp.array([4.0, 16.0, 64.0])
        >>> print(f"{renyi_epsilon(orders=orders, divergences=orders / 20, delta=1e-5):.4f}")
        1.3182
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    orders, divergences, delta = as_floats(orders=orders, divergences=divergences, delta=delta)
    orders = in_range(orders, "orders", 1.0, open_low=True)
    divergences = in_range(divergences, "divergences", 0.0)
    delta = in_range(delta, "delta", 0.0, 1.0)
    epsilon = divergences + _surcharge(orders, delta[..., None], conversion)
    return jnp.maximum(jnp.min(jnp.where(divergences == 0, 0, epsilon), -1), 0)


def renyi_delta(
    *, orders: ArrayLike, divergences: ArrayLike, epsilon: ArrayLike, conversion: str = "tight"
) -> Float[Array, "..."]:
    """The least δ that any order of a Rényi curve certifies at a given ε.

    tight:   δ = min_α exp((α - 1)(D_α - ε)) (1 - 1/α)^α / (α - 1), not above 1;
    classic: δ = min_α exp((α - 1)(D_α - ε)), not above 1.

    Args:
        orders: α in (1, ∞], shape [K].
        divergences: D_α in [0, ∞], shape [..., K].
        epsilon: ε in [0, ∞), any shape that broadcasts with the leading axes of the divergences.
        conversion: "tight", never above "classic"; or "classic".

    Returns:
        δ in [0, 1]. 0 where some D_α is 0, or the order ∞ is given and D_∞ ≤ ε. The gradient is that of the
        best order.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: as `renyi_epsilon`.
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    orders, divergences, epsilon = as_floats(orders=orders, divergences=divergences, epsilon=epsilon)
    orders = in_range(orders, "orders", 1.0, open_low=True)
    divergences = in_range(divergences, "divergences", 0.0)
    epsilon = in_range(epsilon, "epsilon", 0.0, open_high=True)
    pure = jnp.isinf(orders)
    orders_ = jnp.where(pure, 2, orders)
    log_delta = (orders_ - 1) * (divergences - epsilon[..., None])
    if conversion == "tight":
        log_delta = log_delta + orders_ * jnp.log1p(-1 / orders_) - jnp.log(orders_ - 1)
    log_delta = jnp.where(pure, 0, log_delta)
    certain = (divergences == 0) | (pure & (divergences <= epsilon[..., None]))
    return jnp.exp(jnp.minimum(jnp.min(jnp.where(certain, -jnp.inf, log_delta), -1), 0))


def renyi_divergence(
    *, orders: ArrayLike, epsilon: ArrayLike, delta: ArrayLike, conversion: str = "tight"
) -> Float[Array, "..."]:
    """The largest D_α with which order α alone certifies (ε, δ)-DP: `renyi_epsilon` inverted, per order.

    Args:
        orders: α in (1, ∞].
        epsilon: ε in [0, ∞]; broadcast against the orders, as is δ.
        delta: δ in [0, 1].
        conversion: "tight" or "classic", as in `renyi_epsilon`.

    Returns:
        D_α in [0, ∞]. 0 (with a zero gradient) where this order cannot certify the pair at any finite noise.

    Raises:
        ValueError: if an argument is out of range or the conversion is unknown.

    Source: as `renyi_epsilon`.
    """
    as_choice(conversion, "conversion", CONVERSIONS)
    orders, epsilon, delta = as_same_shape(orders=orders, epsilon=epsilon, delta=delta)
    orders = in_range(orders, "orders", 1.0, open_low=True)
    epsilon, delta = in_range(epsilon, "epsilon", 0.0), in_range(delta, "delta", 0.0, 1.0)
    surcharge = _surcharge(orders, delta, conversion)
    feasible = epsilon > surcharge
    return jnp.where(feasible, epsilon - jnp.where(feasible, surcharge, 0), 0)


def compose_renyi(divergences: ArrayLike, *, axis: int = -2) -> Float[Array, "..."]:
    """The Rényi divergences of several (also adaptive) releases together: they add at equal order.

    Args:
        divergences: D_α in [0, ∞], shape [..., T, K]: T releases at the same K orders.
        axis: along which the releases lie.

    Returns:
        D_α in [0, ∞], shape [..., K].

    Raises:
        ValueError: if an argument is out of range.

    Source: Mironov, "Rényi Differential Privacy", Proposition 1.
    """
    (divergences,) = as_floats(divergences=divergences)
    return jnp.sum(in_range(divergences, "divergences", 0.0), axis)


@partial(jax.jit, static_argnums=2)
def _surcharge(orders, delta, conversion):
    """What order α adds to its divergence to give ε at δ."""
    pure, sure = jnp.isinf(orders), delta == 0
    orders_ = jnp.where(pure, 2, orders)
    level = -jnp.log(jnp.where(sure, 1, delta))
    if conversion == "tight":
        surcharge = (level - jnp.log(orders_)) / (orders_ - 1) + jnp.log1p(-1 / orders_)
    else:
        surcharge = level / (orders_ - 1)
    return jnp.where(pure, 0, jnp.where(sure, jnp.inf, surcharge))
