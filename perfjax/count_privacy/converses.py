"""What no release of counts can beat: lower bounds on the budget of an edge, from utility alone.

Every bound here uses only E|released - m| <= r max(m, 1) at all counts m, and the budget v(n + 1) of all edges above a
count n (the larger end of an edge gives it its index, and budgets do not increase). "Better Privacy Guarantees for
Larger Groups" writes v(n) on the left; its proofs give v(n + 1), which is more.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers
from perfjax.count_privacy._arguments import check_count, check_ranges
from perfjax.count_privacy.fisher import fisher_bound
from perfjax.count_privacy.priors import best_prior_bound

__all__ = [
    "GAUSSIAN_PRIOR",
    "LOG_GAUSSIAN",
    "TWO_COUNTS",
    "UNIFORM_PRIOR",
    "LowerBounds",
    "best_lower_bound",
    "gaussian_prior_coefficient",
    "gaussian_prior_limit",
    "kl_bound",
    "kl_test_bound",
    "two_count_bound",
    "two_count_limit",
    "uniform_bound",
    "uniform_limit",
    "uniform_prior_bound",
]

TWO_COUNTS = 1 / 128
UNIFORM_PRIOR = 3 / (2 * math.e**3)
GAUSSIAN_PRIOR = math.pi / (4 * math.e**2)
LOG_GAUSSIAN = 1 / math.pi
"""Coefficients of 1 / (r n)^2 for n -> infinity, then r -> 0: three lower bounds, and what the log-Gaussian needs.

Source: "Better Privacy Guarantees for Larger Groups", Table 2.
"""

Rational = float | int | str | Fraction | np.ndarray | Array


def two_count_bound(count: ArrayLike, relative_error: Rational) -> float:
    """v(n + 1) >= (1 - r)^2 / (2 (m - n)^2), m = ceil(((1 + 3 r) / (1 - r))^2 n), by Pinsker's inequality.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1); a decimal number is taken as written ("1/3" and fractions are too), since a
            rounded one can make m too large by one.

    Returns:
        The bound, a Python number: m is a whole number and has no derivative.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 14.

    Example:
        >>> print(f"{two_count_bound(1, 0.2):.6f}")
        0.035556
    """
    n = check_count(count, "count", low=1)
    r = _rational(relative_error)
    check_ranges(relative_error=float(r))
    m = math.ceil(((1 + 3 * r) / (1 - r)) ** 2 * n)
    return float((1 - r) ** 2 / (2 * Fraction(m - n) ** 2))


def _rational(value: Rational) -> Fraction:
    return Fraction(value) if isinstance(value, str | int | Fraction) else Fraction(repr(float(value)))


def two_count_limit(relative_error: Numbers) -> Float[Array, "..."]:
    """liminf n^2 v(n) >= (1 - r)^6 / (128 r^2 (1 + r)^2).

    Args:
        relative_error: r, in (0, 1).

    Returns:
        The bound.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 15.
    """
    (r,) = check_ranges(relative_error=relative_error)
    return (1 - r) ** 6 / (128 * r**2 * (1 + r) ** 2)


def kl_test_bound(count: Numbers, other: Numbers, level: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """v(n + 1) >= max(kl(1 - a, b), kl(1 - b, a)) / (m - n)^2 by the test whether the release exceeds t, n < t < m.

    Utility bounds both errors of the test (Markov): a = r max(n, 1) / (t - n) and b = r m / (m - t). Here kl(p, q) is
    the divergence of coins. Sharper than `two_count_bound`, above all for r n below 1.

    Args:
        count: n, at least 0, whole.
        other: m, whole, above n.
        level: t, between n and m.
        relative_error: r, in (0, 1).

    Returns:
        The bound; 0 where a + b >= 1, or where the numbers are not in order, so that nothing follows.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; "Better Privacy Guarantees for Larger Groups" has Pinsker's inequality in the place of kl.

    Example:
        >>> print(f"{kl_test_bound(0, 1, 0.5, 0.05):.4f}")
        1.7578
    """
    return _test_bound(*check_ranges(count=count, other=other, level=level, relative_error=relative_error))


def _test_bound(n, m, t, r):
    inside = (n < t) & (t < m)
    a = r * jnp.maximum(n, 1) / jnp.where(inside, t - n, 1)
    b = r * m / jnp.where(inside, m - t, 1)
    says = inside & (a + b < 1)
    a, b = jnp.where(says, a, 0.25), jnp.where(says, b, 0.25)
    divergence = jnp.maximum(_coins(a, b), _coins(b, a))
    return jnp.where(says, divergence / jnp.where(says, m - n, 1) ** 2, 0)


def kl_bound(count: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """The greatest `kl_test_bound` for a count over a grid of other counts and levels, each of which is valid.

    Args:
        count: n, at least 0, whole. For n = 0 it bounds v(1).
        relative_error: r, in (0, 1).

    Returns:
        The bound; 0 if no test says anything.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.

    Example:
        >>> print(f"{kl_bound(1, 0.01):.3f}")
        3.723
    """
    return _kl_bound(*check_ranges(count=count, relative_error=relative_error))


@jax.jit
def _kl_bound(n, r):
    n, r = n[..., None, None], r[..., None, None]
    # A count too far away adds nothing: what matters lies within a few times ((1 + 3 r) / (1 - r))^2 n.
    reach = jnp.log(8 * (1 + n) * ((1 + 3 * r) / (1 - r)) ** 2)
    k = jnp.round(jnp.exp(jnp.linspace(0, 1, STEPS, dtype=n.dtype)[:, None] * reach))
    level = n + k * jnp.asarray(np.arange(1, LEVELS) / LEVELS, n.dtype)
    return jnp.max(_test_bound(n, n + k, level, r), axis=(-2, -1))


STEPS, LEVELS = 96, 64  # of k and t in `kl_bound`


def _coins(a, b):
    """kl(1 - a, b)."""
    return (1 - a) * (jnp.log1p(-a) - jnp.log(b)) + a * (jnp.log(a) - jnp.log1p(-b))


def uniform_prior_bound(count: Numbers, relative_error: Numbers, width: Numbers) -> Float[Array, "..."]:
    """v(n + 1) >= 12 / (K^2 - 1) [log(K / (2 e (r (n + (K - 1) / 2) + 1/4)))]_+, by counts uniform on n .. n + K - 1.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1).
        width: K, odd and at least 3.

    Returns:
        The bound; 0 where it says nothing.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 23.
    """
    n, r, width = check_ranges(count=count, relative_error=relative_error, width=width)
    return jnp.exp(_log_uniform(n, r, width))


def _log_uniform(n, r, width):
    gain = jnp.log(width / (2 * math.e * (r * (n + (width - 1) / 2) + 0.25)))
    says = gain > 0
    return jnp.where(says, jnp.log(12 / (width**2 - 1)) + jnp.log(jnp.where(says, gain, 1)), -jnp.inf)


def uniform_bound(count: Numbers, relative_error: Numbers) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The greatest `uniform_prior_bound` over odd widths K, and that K.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1).

    Returns:
        The bound and K; 0 and 3 where no width says anything, as for r above 1 / e and large n.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", section 6.

    Example:
        >>> bound, width = uniform_bound(100, 0.1)
        >>> print(f"{bound:.4e} {width:.0f}")
        2.5783e-04 121
    """
    return _uniform_bound(*jnp.broadcast_arrays(*check_ranges(count=count, relative_error=relative_error)))


@jax.jit
def _uniform_bound(n, r):
    n, r = n[..., None], r[..., None]
    fractions = jnp.linspace(0, 1, 65, dtype=n.dtype)

    def closer(_, ends):
        low, high = ends
        place = low + fractions * (high - low)
        best = jnp.argmax(_log_uniform(n, r, jnp.exp(place)), axis=-1, keepdims=True)
        at = [jnp.take_along_axis(place, jnp.clip(best + step, 0, 64), axis=-1) for step in (-1, 1)]
        return at[0], at[1]

    start = jnp.full_like(n, math.log(3)), jnp.log(1e5 * (1 + n)) + 0 * r
    low, high = jax.lax.fori_loop(0, 8, closer, start)  # the bound has one maximum over K
    middle = 2 * jnp.floor(jnp.exp((low + high) / 2) / 2) + 1
    odd = jnp.maximum(middle + 2 * jnp.arange(-2, 3, dtype=n.dtype), 3)
    bounds = jnp.exp(_log_uniform(n, r, odd))
    best = jnp.argmax(bounds, axis=-1, keepdims=True)
    return tuple(jnp.take_along_axis(x, best, axis=-1)[..., 0] for x in (bounds, odd))


def uniform_limit(width: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """liminf r^2 n^2 v(n) >= 12 / a^2 [log(a / (2 e (1 + a r / 2)))]_+, for K / (r n) -> a.

    Args:
        width: a, above 0; 2 e^1.5 is best for r -> 0, and gives 3 / (2 e^3).
        relative_error: r, in [0, 1).

    Returns:
        The bound; 0 for r >= 1 / e, whatever a.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equations 24 and 25.
    """
    a, r = check_ranges(sigma=width, rate=relative_error)
    return 12 / a**2 * jnp.maximum(jnp.log(a / (2 * math.e * (1 + a * r / 2))), 0)


def gaussian_prior_limit(cut: Numbers, scale: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """liminf r^2 n^2 v(n) >= [log x + h_L - log 2e - log(1 + L x r)]_+ / (x^2 tau_L^2), by a truncated normal prior.

    The prior is normal about n + L x r n, of standard deviation x r n, and cut at L of them: h_L is its entropy and
    tau_L^2 its variance, in units of x r n.

    Args:
        cut: L, above 0.
        scale: x, above 0.
        relative_error: r, in [0, 1).

    Returns:
        The bound; 0 where it says nothing.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equation 30.
    """
    cut, x, r = check_ranges(sigma=cut, shift=scale, rate=relative_error)
    entropy, variance = _truncated_normal(cut)
    gain = jnp.log(x) + entropy - math.log(2 * math.e) - jnp.log1p(cut * x * r)
    return jnp.maximum(gain, 0) / (x**2 * variance)


def gaussian_prior_coefficient(cut: Numbers) -> Float[Array, "..."]:
    """exp(2 h_L) / (8 e^3 tau_L^2), the best of `gaussian_prior_limit` over x for r -> 0; pi / (4 e^2) for large L.

    Args:
        cut: L, above 0.

    Returns:
        The coefficient.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Better Privacy Guarantees for Larger Groups", equations 29 and 31.
    """
    (cut,) = check_ranges(sigma=cut)
    entropy, variance = _truncated_normal(cut)
    return jnp.exp(2 * entropy) / (8 * math.e**3 * variance)


def _truncated_normal(cut):
    """Entropy and variance of a standard normal cut at +- L."""
    mass = 1 - 2 * ndtr(-cut)
    density = jnp.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * cut * density / mass
    return jnp.log(math.sqrt(2 * math.pi) * mass) + variance / 2, variance


class LowerBounds(NamedTuple):
    """Lower bounds on v(n + 1), by name. For n = 0, those but `kl` are the bounds on v(2), since v(1) >= v(2).

    Attributes:
        two_counts: `two_count_bound`.
        kl: `kl_bound`.
        uniform: `uniform_bound`.
        prior: `best_prior_bound`.
        fisher: `fisher_bound`.
    """

    two_counts: Float[Array, ""]
    kl: Float[Array, ""]
    uniform: Float[Array, ""]
    prior: Float[Array, ""]
    fisher: Float[Array, ""]

    @property
    def best(self) -> Float[Array, ""]:
        """The greatest of them."""
        return jnp.max(jnp.stack(list(self)))

    @property
    def winner(self) -> str:
        """The name of the greatest."""
        return max(zip(map(float, self), self._fields, strict=True))[1]


def best_lower_bound(
    relative_error: float | int | Fraction | Array | np.ndarray, count: int | float | Array
) -> LowerBounds:
    """What v(n + 1) is at least for any release with E|released - m| <= r max(m, 1) at all m: all bounds, and the best.

    None identifies the best possible budget: at r = 0.1 the log-Gaussian is within 9 times the best bound for n = 100
    and within 73 times for n = 1, where releases that know that counts are whole do better.

    Args:
        relative_error: r, in (0, 1).
        count: n, whole, at least 0.

    Returns:
        `LowerBounds`; `best` and `winner` say which is greatest.

    Raises:
        ValueError: if an argument is out of range.

    Source: see each bound.

    Example:
        >>> bounds = best_lower_bound(0.05, 100)
        >>> print(f"{bounds.best:.3e} by {bounds.winner}")
        3.369e-03 by fisher
    """
    n = check_count(count, "count")
    r = float(relative_error)
    base = float(max(n, 1))
    return LowerBounds(
        two_counts=jnp.asarray(two_count_bound(int(base), relative_error), float),
        kl=kl_bound(float(n), r),
        uniform=uniform_bound(base, r)[0],
        prior=best_prior_bound(base, r),
        fisher=fisher_bound(base, r),
    )
