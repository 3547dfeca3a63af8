"""Numbers of a known distribution, each from one random 32-bit word, and derivatives for those that move in steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, DTypeLike, Float, UInt32

from perfjax._chi_square import lower_quantile, upper_quantile
from perfjax.binomial import normal_quantile, uniform_from_bits

__all__ = ["chi_square_from_bits", "normal_from_bits", "rounded", "with_slope_of"]


def normal_from_bits(word: UInt32[Array, "*shape"], dtype: DTypeLike) -> Float[Array, "*shape"]:
    """The quantile of N(0, 1), accurate in both tails."""
    return normal_quantile(uniform_from_bits(word, dtype), uniform_from_bits(~word, dtype))


def chi_square_from_bits(word: UInt32[Array, ""], degrees: int, dtype: DTypeLike) -> Float[Array, ""]:
    """A chi-square number with `degrees` degrees of freedom from a random word, by its quantile.

    The quantile as a function of the standard normal z is smooth: cubic Hermite interpolation of its cube root (which
    is nearly linear in z) between 513 knots has an error below 1e-8 relative for 2 or more degrees.
    """
    if degrees == 0:
        return jnp.zeros((), dtype)
    z = normal_from_bits(word, dtype)
    if degrees == 1:
        return z * z
    knots, value, slope = _chi_table(degrees, str(jnp.dtype(dtype)))
    step = float(knots[1] - knots[0])
    place = (z - float(knots[0])) / step
    left = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, len(knots) - 2)
    t = place - left.astype(dtype)
    value, slope = jnp.asarray(value), jnp.asarray(slope) * step
    a, b, da, db = value[left], value[left + 1], slope[left], slope[left + 1]
    root = a + t * (da + t * (3 * (b - a) - 2 * da - db + t * (2 * (a - b) + da + db)))
    return root**3


@functools.cache
def _chi_table(degrees: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Knots in z, cube roots of the chi-square quantile there, and their derivatives."""
    z = np.linspace(-6.5, 6.5, 513)
    lower = lower_quantile(scipy.special.ndtr(z), degrees)
    upper = upper_quantile(scipy.special.ndtr(-z), degrees)
    quantile = np.where(z < 0, lower, upper)
    half = degrees / 2
    log_density = (half - 1) * np.log(quantile / 2) - quantile / 2 - scipy.special.gammaln(half) - np.log(2)
    density = np.exp(-z * z / 2 - np.log(2 * np.pi) / 2 - log_density)
    root = np.cbrt(quantile)
    return z, root.astype(dtype), (density / (3 * root**2)).astype(dtype)


@jax.custom_jvp
def rounded(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`x` rounded, with the derivative of `x`: that of the mean of the rounded value where x is spread over many."""
    return jnp.round(x)


@rounded.defjvp
def _rounded_jvp(primals, tangents):
    return rounded(*primals), tangents[0]


def with_slope_of(expected: Float[Array, "*shape"], drawn: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`drawn`, which moves in steps and so has the derivative 0, with that of its expectation in place."""
    return jax.lax.stop_gradient(drawn - expected) + expected
