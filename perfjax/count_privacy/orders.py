"""Renyi divergences at any order, by quadrature or in closed form: whether a noise has a budget at all orders.

A small shift's cost at a fixed order is half of the noise's Fisher information. zCDP bounds every order, and is decided
by the tails: noise lighter than normal, such as exp(-|x|^3), and normal noise whose variance depends on the count both
cost little at order 2 and without bound at large ones.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._check import Numbers
from perfjax.count_privacy._arguments import check_ranges

__all__ = ["shift_renyi", "unequal_gaussian_order", "unequal_gaussian_renyi"]

FIRST, LATER, STAGES = 4001, 2001, 7
NEGLIGIBLE = 60.0


def shift_renyi(
    log_density: Callable[[Float[Array, "..."]], Float[Array, "..."]], shift: Numbers, order: Numbers
) -> Float[Array, "..."]:
    """The Renyi divergence between noise moved by s and the noise itself, at one order, by quadrature.

    log of the integral of g(x - s)^alpha g(x)^(1 - alpha), over alpha - 1: the trapezoid rule where the integrand is
    within e^-60 of its greatest value, an interval found by looking closer seven times.

    Args:
        log_density: log g, elementwise, normalised; a module-level function compiles once.
        shift: s, above 0.
        order: alpha, above 1.

    Returns:
        D_alpha, to 1e-8 relative for densities that are smooth but for a cusp; infinite if the integrand is greatest
        at |x| = 1e9.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{shift_renyi(jax.scipy.stats.norm.logpdf, 2.0, 10.0):.3f}")
        20.000
    """
    order, shift = jnp.broadcast_arrays(*check_ranges(order=order, shift=shift))
    return _renyi_of_all(log_density, shift, order)


@functools.partial(jax.jit, static_argnums=0)
def _renyi_of_all(log_density, shift, order):
    return jnp.vectorize(lambda s, a: _renyi(log_density, s, a))(shift, order)


def _renyi(log_density, shift, order):
    def exponent(x):
        here = log_density(x)
        return here + order * (log_density(x - shift) - here)

    def hull(grid):
        value = exponent(grid)
        top = jnp.argmax(value)
        # At large orders far out, the exponent is a difference of large numbers: what is within their rounding is kept.
        rounding = 16 * jnp.finfo(grid.dtype).eps * order * jnp.abs(log_density(grid[top]))
        kept = value > value[top] - NEGLIGIBLE - rounding
        first, last = jnp.argmax(kept), grid.size - 1 - jnp.argmax(kept[::-1])
        return grid[jnp.maximum(first - 1, 0)], grid[jnp.minimum(last + 1, grid.size - 1)]

    half = jnp.geomspace(1e-3, 1e9, FIRST, dtype=shift.dtype)
    wide = jnp.concatenate([-half[::-1], jnp.zeros_like(half[:1]), half])
    values = exponent(wide)
    diverges = (jnp.argmax(values) == 0) | (jnp.argmax(values) == wide.size - 1)
    unit = jnp.linspace(0, 1, LATER, dtype=shift.dtype)
    low, high = jax.lax.fori_loop(0, STAGES, lambda _, ends: hull(ends[0] + unit * (ends[1] - ends[0])), hull(wide))
    x = low + jnp.linspace(0, 1, 4 * LATER, dtype=shift.dtype) * (high - low)
    log_step = jnp.log(x[1] - x[0])
    log_integral = jax.scipy.special.logsumexp(exponent(x)) + log_step
    # Near 1 what matters is the excess over 1, less alpha times that at order 1, which is 0: a sum of what is positive.
    here, ratio = log_density(x), log_density(x - shift) - log_density(x)
    near = jnp.abs(order * ratio) < 1
    small = jnp.where(near, ratio, 0)
    excess = jnp.exp(here) * (jnp.expm1(order * small) - order * jnp.expm1(small))
    far = jnp.exp(jnp.minimum(exponent(x), 0)) - jnp.exp(here) - order * (jnp.exp(here + ratio) - jnp.exp(here))
    little = jnp.log1p(jnp.exp(log_step) * jnp.sum(jnp.where(near, excess, far)))
    return jnp.where(diverges, jnp.inf, jnp.where(log_integral < 0.1, little, log_integral) / (order - 1))


def unequal_gaussian_renyi(
    order: Numbers, count: Numbers, relative_error: Numbers, *, reverse: bool = False
) -> Float[Array, "..."]:
    """The Renyi divergence of N(n, r^2 n^2) from N(n + 1, r^2 (n + 1)^2), or the reverse.

    With s^2 = alpha sQ^2 + (1 - alpha) sP^2 above 0,
    alpha (muP - muQ)^2 / (2 s^2) + log(sQ / sP) + log(sQ^2 / s^2) / (2 (alpha - 1)); infinite otherwise.

    Args:
        order: alpha, above 1.
        count: n, at least 1.
        relative_error: r, the standard deviation relative to the count, above 0.
        reverse: that of n + 1 from n, which is infinite from `unequal_gaussian_order` on.

    Returns:
        D_alpha, in nats.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", section 7, equation 34.
    """
    order, n, r = check_ranges(order=order, shift=count, sigma=relative_error)
    p, q = (n + 1, n) if reverse else (n, n + 1)
    mixed = order * q**2 + (1 - order) * p**2  # in units of r^2
    finite = mixed > 0
    mixed = jnp.where(finite, mixed, 1)
    ratio = jnp.log(q / p) + jnp.log(q**2 / mixed) / (2 * (order - 1))
    return jnp.where(finite, order / (2 * r**2 * mixed) + ratio, jnp.inf)


def unequal_gaussian_order(count: Numbers) -> Float[Array, "..."]:
    """The order (n + 1)^2 / (2n + 1) from which N(n + 1, r^2 (n + 1)^2) is infinitely far from N(n, r^2 n^2).

    Such noise has the wanted error, and no zCDP budget however large r is.

    Args:
        count: n, at least 1.

    Returns:
        The order, above 1.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", section 7, equation 35.

    Example:
        >>> print(f"{unequal_gaussian_order(1.0):.4f}")
        1.3333
    """
    (n,) = check_ranges(shift=count)
    return (n + 1) ** 2 / (2 * n + 1)
