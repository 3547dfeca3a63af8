r"""Binomial counts as a quantile of one uniform number: cheap, the same cost in every lane, and differentiable.

`jax.random.binomial` rejects and repeats until the slowest lane of a batch is done, and its derivative is 0.0 without
an error. Here one 32-bit word makes one count: by inversion below a mean of 8, by a Cornish-Fisher expansion above it.
Both are computed in every lane, as a batch would anyway, in a fixed number of steps.

**Derivative.** For K ~ Bin(n, p) and *any* function f,

    d E[f(K)] / dp                = E[ (n - K)/q (f(K+1) - f(K)) ]  =  E[ K/p (f(K) - f(K-1)) ],
    E[f(K_{n+1})] - E[f(K_n)]     = E[ p (f(K+1) - f(K)) ],
    E[f(K_n)] - E[f(K_{n-1})]     = E[ K/n (f(K) - f(K-1)) ],

the first from dP(K > k)/dp = (n - k) P(K = k) / q = (k + 1) P(K = k + 1) / p, the others from adding a trial, or
removing one of the n at random. Take the mean of the two forms in p, and of the two differences in n, and put f'(K) for
the differences of f. What multiplies f'(K) is the derivative of the count at a fixed uniform number:

    dK/dp = (K/p + (n - K)/q) / 2,          dK/dn = (p + K/n) / 2.

It is -(dF/dp)/P(K = k) with F the distribution function taken halfway up its jump at k, averaged over the uniform
numbers that give k. Exactly unbiased for every quadratic f at every n and p: the two one-sided errors of f'(K) cancel.
For other f the bias is that of the trapezoid rule, f'''/12 against f': for f(K) = 1/(1 + K) a quarter of the
derivative at a mean far below 1, 1.5 % at 8, 0.06 % at 30. At p = 0 or 1, as at any mean below 1e-6, it is exact for
linear f only.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, DTypeLike, Float, UInt32

from perfjax import _check

__all__ = ["binomial_from_bits", "binomial_quantile", "normal_quantile", "uniform_from_bits"]

SWITCH = 8.0  # mean of the rarer outcome from which the expansion is used: its total variation error there is 7e-5
TERMS = 33  # P(K >= 33) < 2^-33 at means up to 8, so that no word reaches further
SMALLEST = 2.0**-33  # the smallest uniform number that a 32-bit word makes
TIE = 16  # rounding errors within which a tail is equal to u, as it is for dyadic u and p in exact numbers
RARE = 1e-6  # mean below which the derivative is that of the expected count


def uniform_from_bits(bits: UInt32[Array, "*shape"], dtype: DTypeLike = float) -> Float[Array, "*shape"]:
    """The uniform number (bits + 1/2) / 2^32, which is never 0 or 1.

    Args:
        bits: random 32-bit words, such as `jax.random.bits(key, shape, "uint32")`.
        dtype: of the result.

    Returns:
        Numbers in (0, 1), exact in float64. In float32 they are rounded to 24 bits: those near 0 keep their relative
        resolution down to 2^-33, those near 1 end at 1 - 2^-24. `uniform_from_bits(~bits)` is 1 minus the number, and
        has the resolution at the other end.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    # In halves: CPUs convert signed integers only, and the sum is rounded once.
    high, low = ((half.astype(jnp.int32)).astype(dtype) for half in (bits >> 16, bits & 0xFFFF))
    below_one = 1 - float(jnp.finfo(dtype).epsneg)
    return jnp.minimum(high * 2.0**-16 + (low + 0.5) * 2.0**-32, below_one)


def normal_quantile(u: Float[Array, "*#shape"], upper: Float[Array, "*#shape"] | None = None) -> Float[Array, "*shape"]:
    """The standard normal z with P(Z <= z) = u, for uniform numbers made of 32-bit words.

    One logarithm, one root and one quotient, without a branch: half the cost of `jax.scipy.special.ndtri` or less, and
    both tails are resolved, which erf_inv(2 u - 1) does not do in float32.

    Args:
        u: in (0, 1); what lies outside [2^-33, 1 - 2^-33] is moved there.
        upper: 1 - u, more accurate than `1 - u` is near u = 0 in float32.

    Returns:
        z between -6.34 and 6.34, with an absolute error below 3e-8 in float64 and 1e-6 in float32.
    """
    upper = 1 - u if upper is None else upper
    radius = jnp.sqrt(-2 * jnp.log(jnp.maximum(jnp.minimum(u, upper), SMALLEST)))
    # A rational minimax fit on the interval that 32-bit words can reach; positive coefficients, so nothing cancels.
    numerator = _horner(radius, 202.86109063, 588.22541131, 166.2677184, 6.13987104)
    denominator = _horner(radius, 62.97808977, 354.94907928, 293.8245848, 45.73408091, 1.0)
    z = radius - numerator / denominator
    return jnp.where(u < upper, -z, jnp.where(u > upper, z, 0))


def binomial_quantile(
    u: ArrayLike, n: ArrayLike, p: ArrayLike, *, upper: ArrayLike | None = None, q: ArrayLike | None = None
) -> Float[Array, "..."]:
    """The count K of successes in n trials with F(K - 1) < u <= F(K): binomial if u is uniform.

    So also where u = F(K) in exact numbers: the median of an odd number of fair trials is (n - 1) / 2. Its law is
    within 1e-4 of the binomial one in total variation up to n = 1e7, and in Kolmogorov distance beyond (in float32 1e-3
    there, from rounding n p). It does not decrease in u but for float32 rounding, and is differentiable in `n` and `p`
    at fixed u, as described at the head of this module.

    Args:
        u: uniform numbers in (0, 1); what lies outside [2^-33, 1 - 2^-33] is moved there. Not differentiable.
        n: number of trials, an integer of 0 to 1e9 held as a float.
        p: probability of success, in [0, 1].
        upper: 1 - u, where the caller knows it better: in float32 `1 - u` loses the resolution of u near 0, which
            matters for K if p < 1/2 and the mean is below about 1e-5.
        q: 1 - p, where the caller knows it better than `1 - p`, that is for p near 1. Derivatives are those of p
            with q = 1 - p, whatever `q` depends on.

    Returns:
        Counts, in the widest dtype and the common shape of the arguments. In float32, counts above 2^24 (1.7e7) are
        rounded to the nearest float; where n is as large and p near 1, `binomial_quantile(upper, n, q, q=p)` counts
        the few failures without that loss. Below a mean (of the rarer outcome) of 1e-6 the derivative is that of n p:
        the count is 0 in nearly every run, and one that is not would weigh 1/p. NaN where a traced argument is out of
        range.

    Raises:
        ValueError: an argument known before tracing is out of range; or `u` is differentiated.

    Source: Cornish-Fisher expansion, Abramowitz and Stegun 26.2.49, with the cumulants of the binomial law less those
        of a uniform (-1/2, 1/2) (Sheppard's corrections), collected in powers of 1/sqrt(n p q). Derivatives: ours.

    Example:
        >>> print(binomial_quantile(0.5, 10.0, 0.3))
        3.0
    """
    given = {"u": u, "n": n, "p": p} | ({} if upper is None else {"upper": upper}) | ({} if q is None else {"q": q})
    checked = dict(zip(given, _check.as_floats(**given), strict=True))
    # A traced value is not checked: that would cost more than the draw.
    for name in [name for name, value in checked.items() if _check.is_known(value)]:
        _check.in_range(checked[name], name, 0.0, math.inf if name == "n" else 1.0)
    _check.check_shapes(**checked)
    u, n, p = checked["u"], checked["n"], checked["p"]
    upper, q = checked.get("upper", 1 - u), checked.get("q", 1 - p)
    return _quantile(u, upper, n, p, q)


def binomial_from_bits(
    bits: UInt32[Array, "..."], n: ArrayLike, p: ArrayLike, *, q: ArrayLike | None = None
) -> Float[Array, "..."]:
    """A binomial count from each random 32-bit word: `binomial_quantile` with both tails resolved.

    Args:
        bits: random 32-bit words, such as `jax.random.bits(key, shape, "uint32")`. One word, one count: words that are
            used again give dependent counts.
        n: number of trials, an integer of 0 to 1e9 held as a float.
        p: probability of success, in [0, 1].
        q: 1 - p, where the caller knows it better than `1 - p`.

    Returns:
        See `binomial_quantile`.

    Raises:
        ValueError: an argument known before tracing is out of range.

    Example:
        >>> bits = jax.random.bits(jax.random.key(0), (3,), "uint32")
        >>> print(binomial_from_bits(bits, 1e6, 0.25).shape)
        (3,)
    """
    n, p = _check.as_floats(n=n, p=p)
    u, upper = uniform_from_bits(bits, n.dtype), uniform_from_bits(~bits, n.dtype)
    return binomial_quantile(u, n, p, upper=upper, q=q)


@jax.jit  # called outside of jit, its 300 operations would be compiled one by one
def _quantile(u, upper, n, p, q):
    """The count by way of the rarer outcome, whose few occurrences keep the precision that n minus them would lose."""
    # A caller's q is a better value, not another variable: it gets the tangent that 1 - p has.
    q = jax.lax.stop_gradient(q) - (p - jax.lax.stop_gradient(p))
    swap = p > q
    # At u = F(K) the count is the lower of two: of the rarer outcome the higher one, if that is the failure.
    above = 1 - 2 * TIE * float(jnp.finfo(u.dtype).eps)
    u, upper = jnp.where(swap, upper, u), jnp.where(swap, u * above, upper)
    rare = _rare_count(u, upper, n, jnp.where(swap, q, p), jnp.where(swap, p, q))
    # Not where(swap, n - rare, rare), for which XLA stores `swap`, and needs half as long again on a CPU.
    return jnp.where(swap, n, 0) + jnp.where(swap, -1, 1).astype(rare.dtype) * rare


@jax.custom_jvp
def _rare_count(u, upper, n, p, q):
    """The count for p <= 1/2."""
    valid = (u >= 0) & (upper >= 0) & (n >= 0) & (p >= 0) & (q >= 0)
    u, upper = (jnp.maximum(x, SMALLEST) for x in (u, upper))
    count = jnp.where(n * p < SWITCH, _by_inversion(upper, n, p, q), _by_expansion(u, upper, n, p, q))
    # A quotient, because XLA on a CPU copies whatever takes only cheap operations into everything that reads it: as
    # where(valid, count, nan), the count would be computed two or three times in each release.
    return jnp.clip(count, 0.0, n) / jnp.where(valid, 1, jnp.nan).astype(count.dtype)


@functools.partial(_rare_count.defjvp, symbolic_zeros=True)
def _rare_count_jvp(primals, tangents):
    for tangent in tangents[:2]:
        if not isinstance(tangent, jax.custom_derivatives.SymbolicZero):
            raise ValueError("Argument `u` must not be differentiated: a count is a step function of it.")
    _, _, n, p, q = primals
    count = _rare_count(*primals)
    seen = n * p > RARE
    per_success = count / jnp.where(seen, p, 1)
    per_failure = (n - count) / q
    slopes = {
        2: jnp.where(seen, (p + count / jnp.where(seen, n, 1)) / 2, p),
        3: jnp.where(seen, (per_success + per_failure) / 2, per_failure),  # all of it on p, none on q = 1 - p
    }
    moving = [i for i in slopes if not isinstance(tangents[i], jax.custom_derivatives.SymbolicZero)]
    return count, sum((slopes[i] * tangents[i] for i in moving), jnp.zeros_like(count))


def _by_inversion(upper, n, p, q):
    """The number of k with 1 - u < P(K > k).

    In terms of the upper tail, since F(0) rounds to 1 at a small mean, and every count would be 0. The tail is summed
    from its end: 1 less the masses from the start leaves a rounding error in float32 that some words never fall below.
    """
    odds = p / q
    most = (n + 1) * odds
    mass = jnp.exp(n * jnp.log1p(-p))
    masses = []
    for k in range(1, TERMS + 1):
        mass = mass * (most * (1 / k) - odds)  # P(K = k)
        masses.append(mass)
    above = jnp.zeros_like(mass)
    upper = upper * (1 + TIE * float(jnp.finfo(mass.dtype).eps))
    count = jnp.zeros_like(upper * mass)
    for mass in reversed(masses):
        above = above + mass
        count = count + (upper < above).astype(count.dtype)
    return count


def _by_expansion(u, upper, n, p, q):
    """The Cornish-Fisher expansion to fourth order in 1/sqrt(n p q), rounded to an integer.

    A count plus an independent uniform on (-1/2, 1/2) is taken out of the cumulants (Sheppard's corrections), so that
    the smooth quantile crosses k + 1/2 at u = F(k); w = p q and d = q - p.
    """
    z = normal_quantile(u, upper)
    w, d, z2 = p * q, q - p, z * z
    scale = jnp.sqrt(jnp.maximum(n * w, 1))
    h = 1 / scale
    first = d * (z2 - 1) / 6
    second = -z * ((1 + 2 * w) * z2 + (2 - 14 * w)) / 72
    third = d * (2 + w) * _horner(z2, -16.0, 7.0, 3.0) / 1620
    even = _horner(w, 2684.0, -5416.0, -1732.0), _horner(w, -548.0, 1612.0, 1024.0), _horner(w, -207.0, 468.0, 36.0)
    fourth = z * _horner(z2, *even) / 155520
    # The mean apart from the rest: their sum has steps of 1/2 near 5e6 in float32, and half of them would be ties.
    mean = n * p
    whole = jnp.floor(mean)
    # Rounded down at a tie, as at u = 1/2 for an odd number of fair trials.
    return whole + jnp.ceil((mean - whole) + scale * z + _horner(h, first, second, third, fourth) - 0.5)


def _horner(x, *coefficients):
    """The polynomial in x with these coefficients, constant term first."""
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total
