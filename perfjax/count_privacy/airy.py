"""Airy noise, the law with the least Fisher information for its mean absolute value, and the log-Airy mechanism.

Its density is g(x) = Ai(|x| - a')^2 / (2 a' Ai(-a')^2), with a' = 1.01879 the first zero of Ai' (in absolute value):
mean absolute value 2a'/3, Fisher information 4a'/3. Its score grows more slowly the further out, so that the budget of
a shift, over all orders and in both directions, is its Kullback-Leibler divergence; so for any even, log-concave noise
whose curvature does not increase away from 0. That derivation is reviewed, not published; a test checks it by
quadrature at orders up to 1e5. For (epsilon, delta) nothing is claimed beyond what zCDP implies.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, DTypeLike, Float, Key

from perfjax import _check
from perfjax._check import Numbers
from perfjax.accounting._roots import increasing_root
from perfjax.count_privacy import _airy_tables as tables
from perfjax.count_privacy._arguments import check_ranges
from perfjax.count_privacy._exact import Arithmetic
from perfjax.count_privacy._release import AbstractCountRelease, log_bounds
from perfjax.count_privacy.fisher import AIRY_SLOPE_ZERO

__all__ = [
    "FISHER_INFORMATION",
    "MEAN_ABSOLUTE",
    "LogAiry",
    "airy_budget",
    "airy_log_density",
    "airy_noise",
    "airy_score_cumulant",
    "airy_tail",
    "log_airy_error",
    "log_airy_sigma",
]

FISHER_INFORMATION = 4 * AIRY_SLOPE_ZERO / 3
MEAN_ABSOLUTE = 2 * AIRY_SLOPE_ZERO / 3

LAST_PLACE = 11.9  # log(1 + s) up to which the budget is read from its table
TABLE_ERROR = 2e-13  # of the budget, relative; by which it is rounded up


class LogAiry(AbstractCountRelease):
    """[(n + c) exp(sigma X - d) - c]_+ with Airy noise X.

    Its budget is v(n) = KL(log(1 + 1 / (n - 1 + c)) / sigma), before clipping exactly, after it at most. For large n
    it is up to 1.6 % below the log-Gaussian's, and above it from r = 0.30; at small n, where it grows like a shift to
    the power 1.5 and not 2, it can be half.

    Attributes:
        sigma: the scale of the noise on log(n + c), in (0, 4].
        shift: c, in counts, above 0.
        drift: d.

    Source: ours; the derivation of the budget is reviewed, not published.

    Example:
        >>> mechanism = LogAiry.from_tolerance(0.1, 1.0)
        >>> print(f"{mechanism.error(10.0):.2f} {mechanism.budget(1.0):.1f}")
        0.55 34.3
    """

    exactly_gaussian: ClassVar[bool] = False
    noise: ClassVar[str] = "airy"

    sigma: Float[Array, ""]
    shift: Float[Array, ""]
    drift: Float[Array, ""]

    def __init__(self, sigma: Numbers, shift: Numbers, drift: Numbers):
        sigma, self.shift, self.drift = check_ranges(sigma=sigma, shift=shift, drift=drift)
        self.sigma = _check.in_range(sigma, "sigma", 0, 4, open_low=True)

    @classmethod
    def from_tolerance(cls, relative_error: Numbers, shift: Numbers) -> "LogAiry":
        """The mechanism with an error below r max(n, 1) at every n (before clipping: equal to r at n = 1).

        Args:
            relative_error: r, in (0, 1).
            shift: c, above 0.

        Raises:
            ValueError: if an argument is out of range.
        """
        sigma, drift = log_airy_sigma(relative_error, shift)
        return cls(sigma, *_check.as_floats(shift=shift, drift=drift))

    def error(self, count: Numbers) -> Float[Array, "..."]:
        (count,) = check_ranges(count=count)
        return _clipped_error(count, self.sigma, self.shift, self.drift)

    def budget(self, count: Numbers) -> Float[Array, "..."]:
        (count,) = check_ranges(count=count)
        edge = jnp.log1p(1 / (jnp.where(count > 1, count - 1, 0) + self.shift))
        return _budget_of_shift(edge / self.sigma)

    def released(self, count: ArrayLike, normal: ArrayLike) -> Float[Array, "..."]:
        noise = self.sigma * _from_normal(normal) - self.drift
        return jnp.maximum((count + self.shift) * jnp.exp(noise) - self.shift, 0)

    def bounds(self, count: np.ndarray, noise: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
        return log_bounds(count, noise, self.sigma, self.shift, self.drift, arithmetic)


def airy_log_density(x: Numbers) -> Float[Array, "..."]:
    """log g(x).

    Args:
        x: any number.

    Returns:
        The log density, to 1e-12 in float64; falls like -4/3 |x|^1.5.

    Raises:
        ValueError: if `x` is no number.

    Source: ours; the density minimises Fisher information for a given mean absolute value.

    Example:
        >>> print(f"{airy_log_density(0.0):.6f}")
        -0.711766
    """
    (x,) = check_ranges(value=x)
    return _log_density(x)


@jax.jit
def _log_density(x):
    """`airy_log_density` of an array, to be traced by other code."""
    x = jnp.abs(x)
    near = x < tables.REACH
    z = jnp.where(near, tables.REACH, x) - AIRY_SLOPE_ZERO
    zeta = 2 / 3 * z * jnp.sqrt(z)
    series = -5 / 72 / zeta + 385 / 10368 / zeta**2 - 85085 / 2239488 / zeta**3
    far = -2 * zeta - jnp.log(z) / 2 - math.log(4 * math.pi) + 2 * jnp.log1p(series) - tables.LOG_NORM
    return jnp.where(near, tables.interpolated(tables.density_table(), jnp.where(near, x, 0)), far)


def airy_tail(x: Numbers) -> Float[Array, "..."]:
    """P(X > x) = [Ai'(z)^2 - z Ai(z)^2] / (2 a' Ai(-a')^2), z = x - a', for x >= 0; 1 - P(X > -x) below 0.

    Args:
        x: any number.

    Returns:
        A probability, to 1e-12 relative in float64 for x >= 0; 0 beyond x = 72, where it underflows.

    Raises:
        ValueError: if `x` is no number.

    Source: ours: an antiderivative of Ai^2.

    Example:
        >>> print(f"{airy_tail(0.5):.6f}")
        0.272125
    """
    (x,) = check_ranges(value=x)
    size = jnp.abs(x)
    inside = jnp.where(size < tables.REACH, size, tables.REACH)
    log_tail = _log_density(inside) + tables.interpolated(tables.slope_table(), inside)
    tail = jnp.where(size < tables.REACH, jnp.exp(log_tail), 0)
    return jnp.where(x >= 0, tail, 1 - tail)


def airy_noise(key: Key[Array, ""], shape: tuple[int, ...] = (), dtype: DTypeLike | None = None) -> Float[Array, "..."]:
    """Airy noise, by inversion: the quantile at the rank of a normal number. For simulations, as all floats.

    Args:
        key: a typed key.
        shape: of the result.
        dtype: of the result, JAX's default float dtype if not given.

    Returns:
        Independent draws.

    Source: ours.
    """
    return _from_normal(jax.random.normal(key, shape, jnp.result_type(float) if dtype is None else dtype))


@jax.jit
def _from_normal(z):
    """The Airy number of the same rank as a standard normal one."""
    size = jnp.minimum(jnp.abs(z), 9)
    return jnp.sign(z) * tables.interpolated(tables.quantile_table(), size)


def airy_budget(shift: Numbers) -> Float[Array, "..."]:
    """KL(s), the zCDP budget of Airy noise for a shift s: exact over all orders, in both directions.

    At most (2 a' / 3) s^2, which it approaches as s -> 0; like 4/3 s^1.5 for large s.

    Args:
        shift: s, at least 0, in units of the noise.

    Returns:
        rho, to 5e-13 relative in float64 and 2e-6 in float32, rounded up: never below the divergence. From a table for
        s up to e^11.9 = 1.5e5, from there by the expansion of the density's tail.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; the derivation is reviewed, not published.

    Example:
        >>> print(f"{airy_budget(3.0):.4f}")
        5.0815
    """
    (s,) = check_ranges(count=shift)
    return _budget_of_shift(s)


@jax.jit
def _budget_of_shift(s):
    """`airy_budget` of a checked argument, to be traced by other code."""
    place = jnp.log1p(s)
    far = place > LAST_PLACE
    # Each branch is held inside its own domain. Not s * s: it overflows where the budget does not.
    ratio = jnp.exp(tables.interpolated(tables.budget_table(), jnp.where(far, LAST_PLACE, place)))
    near_ = jnp.where(far, 1, s)
    near = ratio * near_ * (near_ / jnp.sqrt(1 + near_))
    margin = TABLE_ERROR + 8 * float(jnp.finfo(s.dtype).eps)
    return (1 + margin) * jnp.where(far, _far_budget(jnp.where(far, s, 1e6)), near)


def _far_budget(s):
    """E[V(s + X)] - E[V(X)] with V = -log g by its expansion, to s^-2.5 relative, and that by its moments in X."""
    w = s - AIRY_SLOPE_ZERO
    constant = math.log(4 * math.pi) + tables.LOG_NORM - tables.entropy()
    # w^1.5 with the mean of (1 + X / w)^1.5, whose next term is of order w^-4.
    return 4 / 3 * w * jnp.sqrt(w) * (1 + 3 / 8 * tables.VARIANCE / w / w) + jnp.log(w) / 2 + constant


def airy_score_cumulant(t: Numbers) -> Float[Array, "..."]:
    """log E exp(t S) for the score S = -(log g)'(X): at most I t^2 / 2, so that no order of a small shift costs more.

    Args:
        t: in [0, 64].

    Returns:
        The cumulant-generating function.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    (t,) = check_ranges(count=t)
    return _score_cumulant(_check.in_range(t, "t", 0, 64))


@jax.jit
def _score_cumulant(t):
    x, weight = _half_line(t.dtype, tables.REACH)
    score = jax.vmap(jax.grad(lambda y: -_log_density(y)))(x)
    exponent = _log_density(x) + jnp.log(weight) + jnp.logaddexp(t[..., None] * score, -t[..., None] * score)
    return jax.scipy.special.logsumexp(exponent, axis=-1)


def _half_line(dtype, end: float):
    """Nodes and weights on [0, end], in panels of length 2."""
    node, weight = np.polynomial.legendre.leggauss(24)
    starts = np.arange(0, end, 2.0)[:, None]
    return jnp.asarray((starts + node + 1).ravel(), dtype), jnp.asarray(np.tile(weight, len(starts)), dtype)


NODES, WEIGHTS = ((x + y) / 2 for x, y in zip(np.polynomial.legendre.leggauss(64), (1, 0), strict=True))
"""Gauss-Legendre on [0, 1], for each smooth part of the density."""


NEWTON_STEPS = 8


def _integrate(function, low, high):
    """The integral of `function` times g over [low, high], split at 0; limits are scalars or arrays."""
    total = 0.0
    for start, end in ((low, jnp.clip(0.0 * low, low, high)), (jnp.clip(0.0 * low, low, high), high)):
        width = (end - start)[..., None]
        x = start[..., None] + width * jnp.asarray(NODES, width.dtype)
        mass = width * jnp.asarray(WEIGHTS, width.dtype) * jnp.exp(_log_density(x))
        total = total + jnp.sum(mass * function(x), axis=-1)
    return total


def log_airy_error(sigma: Numbers, drift: Numbers) -> Float[Array, "..."]:
    """E|exp(sigma X - d) - 1| for Airy noise X: the relative error of n + c before clipping.

    Args:
        sigma: in (0, 4].
        drift: d, any number with |d| <= 14 sigma.

    Returns:
        The mean absolute error, by Gauss-Legendre quadrature to 1e-12.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    sigma, drift = check_ranges(sigma=sigma, drift=drift)
    return _error(*jnp.broadcast_arrays(_check.in_range(sigma, "sigma", 0, 4), drift / sigma))


@jax.jit
def _clipped_error(count, sigma, shift, drift):
    """E|released - n|: the error before clipping, less what a release below 0 would have added."""
    edge = jnp.asarray(tables.SUPPORT, count.dtype)
    cut = jnp.clip((drift - jnp.log1p(count / shift)) / sigma, -edge, edge)

    def below_zero(x):
        return -shift * jnp.expm1(sigma * (x - cut[..., None]))

    bare = (count + shift) * _error(sigma, drift / sigma)
    return bare - _integrate(below_zero, jnp.full_like(cut, -edge), cut)


@jax.jit
def _error(sigma, middle):
    """E|exp(sigma (X - x0)) - 1|."""
    edge = jnp.full_like(middle, tables.SUPPORT)
    middle = jnp.clip(middle, -edge, edge)

    def away(x):
        return jnp.abs(jnp.expm1(sigma[..., None] * (x - middle[..., None])))

    return _integrate(away, -edge, middle) + _integrate(away, middle, edge)


def log_airy_sigma(relative_error: Numbers, shift: Numbers) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The noise and drift with which (n + c) exp(sigma X - d) - c has an error of r0 max(n, 1) at most.

    min over d of E|exp(sigma X - d) - 1| = r0 / (1 + c); the best d / sigma is the median of X under the law that is
    tilted by exp(sigma X), and d -> 2 a'^2 / 3 sigma^2 for small sigma.

    Args:
        relative_error: r0, in (0, 1).
        shift: c, above 0.

    Returns:
        sigma and d.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> sigma, drift = log_airy_sigma(0.1, 1.0)
        >>> print(f"{sigma:.5f} {drift:.6f}")
        0.07365 0.003755
    """
    relative_error, shift = check_ranges(relative_error=relative_error, shift=shift)
    return _calibrated(relative_error / (1 + shift))


@jax.jit
def _calibrated(share):
    # For small sigma the error is sigma E|X|; beyond it grows more slowly, so that the search starts from below.
    start = jnp.log(share / MEAN_ABSOLUTE)
    sigma = jnp.exp(increasing_root(_excess_error, start, jnp.full_like(start, math.log(4.0)), (share,)))
    return sigma, sigma * _median(sigma)


def _excess_error(log_sigma, share):
    sigma = jnp.exp(log_sigma)
    return jnp.log(_error(sigma, _median(sigma)) / share)


def _median(sigma):
    """The median of X under the law tilted by exp(sigma X), by Newton's method; its last step is differentiated."""
    still = jax.lax.stop_gradient(sigma)
    start = 2 * AIRY_SLOPE_ZERO**2 / 3 * still  # for small sigma
    place = jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, x: _toward_median(x, still), start)
    return _toward_median(place, sigma)


def _toward_median(x0, sigma):
    edge = jnp.full_like(x0, tables.SUPPORT)

    def tilted(x):
        return jnp.exp(sigma[..., None] * (x - x0[..., None]))

    below, above = _integrate(tilted, -edge, x0), _integrate(tilted, x0, edge)
    # The derivative of log(below / above): the tilt cancels from it.
    return x0 - jnp.log(below / above) / (jnp.exp(_log_density(x0)) * (1 / below + 1 / above))
