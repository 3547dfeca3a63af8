"""The chi-square law: its tails, by finite sums in JAX, and its quantiles, from scipy.special alone.

scipy.stats takes most of a second to import, and the incomplete gamma functions of JAX several to compile.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float

__all__ = ["lower_quantile", "tails", "upper_quantile"]


def lower_quantile(probability, degrees: int):
    """x with P(chi2 <= x) = `probability`, accurate for a small one."""
    return 2 * scipy.special.gammaincinv(degrees / 2, probability)


def upper_quantile(probability, degrees: int):
    """x with P(chi2 > x) = `probability`, accurate for a small one."""
    return 2 * scipy.special.gammainccinv(degrees / 2, probability)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def tails(x: Float[Array, "*shape"], degrees: int) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """P(chi2 <= x) and P(chi2 > x) for x > 0, each accurate relative to itself; where tiny, 1e-12 in float64.

    With a = degrees / 2: the smaller one by a sum of positive terms, (x/2)^(a + k) exp(-x/2) / Gamma(a + k + 1) over
    k >= 0 for the lower tail, as many as matter below x = degrees; over k < 0 for the upper, with the tail of a normal
    square for an odd number of degrees.
    """
    a, half = degrees / 2, x / 2
    below = _sum_of_powers(half, a + np.arange(40 + math.ceil(9 * math.sqrt(a))))
    above = _sum_of_powers(half, np.arange(degrees % 2 / 2, a))
    if degrees % 2:
        above = above + jax.lax.erfc(jnp.sqrt(half))
    low = x < degrees
    return jnp.where(low, below, 1 - above), jnp.where(low, 1 - below, above)


def _sum_of_powers(x, powers):
    """The sum of x^p exp(-x) / Gamma(p + 1)."""
    if not powers.size:
        return jnp.zeros_like(x)
    powers, norms = (jnp.asarray(values, x.dtype) for values in (powers, scipy.special.gammaln(powers + 1)))
    return jnp.sum(jnp.exp(powers * jnp.log(x)[..., None] - x[..., None] - norms), axis=-1)


@tails.defjvp
def _tails_jvp(degrees, primals, tangents):
    (x,), (change,) = primals, tangents
    density = jnp.exp((degrees / 2 - 1) * jnp.log(x / 2) - x / 2 - math.lgamma(degrees / 2)) / 2
    return tails(x, degrees), (density * change, -density * change)
