"""The Fisher-information bound on budgets, its limits, and the constant they meet in.

With a1' the first zero of Ai', |a1'| = 1.01879, and a1 that of Ai, |a1| = 2.33811: among all laws of a given mean
absolute value, the one with the least Fisher information has the density Ai(|x| - |a1'|)^2 (`airy`).
"""

import math

import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.special
from jaxtyping import Array, Float

from perfjax._check import Numbers
from perfjax.count_privacy._arguments import check_ranges

__all__ = [
    "AIRY_SLOPE_ZERO",
    "AIRY_ZERO",
    "BEST_COEFFICIENT",
    "HALF_LINE",
    "WHOLE_LINE",
    "fisher_bound",
    "fisher_liminf",
    "fisher_limsup",
    "generalised_gaussian_coefficient",
]

AIRY_SLOPE_ZERO = -float(scipy.special.ai_zeros(1)[1][0])
AIRY_ZERO = -float(scipy.special.ai_zeros(1)[0][0])
WHOLE_LINE = 16 * AIRY_SLOPE_ZERO**3 / 27
"""kappa: I(G) (E|W|)^2 of any law G of W is at least that."""
HALF_LINE = 16 * AIRY_ZERO**3 / 27
"""kappa_D: I(G) (E W)^2 of any law on W >= 0 whose density is 0 at 0 is at least that."""
BEST_COEFFICIENT = 8 * AIRY_SLOPE_ZERO**3 / 27
"""C*, the least coefficient of 1 / (r n)^2 that any release can have for n -> infinity, then r -> 0: 0.313317.

The log-Gaussian has 1 / pi, 1.6 % more. "Better Privacy Guarantees for Larger Groups" has 0.106 <= C* <= 0.318; the
derivation of C* is reviewed, not published.
"""


def fisher_bound(count: Numbers, relative_error: Numbers) -> Float[Array, "..."]:
    """v(n + 1) >= sup_d log(1 + [kappa / (r (n + d) + 1/2)^2 - kappa_D / d^2]_+) / 2.

    The information that a release holds about a count drawn from a prior of mean n + d on [n, infinity), against the
    least that its utility needs. The best d = (r n + 1/2) / ((kappa r / kappa_D)^(1/3) - r) is in closed form.

    Args:
        count: n, at least 1.
        relative_error: r, in (0, 1).

    Returns:
        The bound; 0 where it says nothing, as for r >= 0.2876 and large n.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; the derivation is reviewed, not published.

    Example:
        >>> print(f"{fisher_bound(100, 0.1):.4e}")
        3.6709e-04
    """
    n, r = check_ranges(count=count, relative_error=relative_error)
    slope = jnp.cbrt(WHOLE_LINE / HALF_LINE * r) - r
    inside = slope > 0  # else the further the better, and the limit is 0
    d = (r * n + 0.5) / jnp.where(inside, slope, 1)
    gain = WHOLE_LINE / (r * (n + d) + 0.5) ** 2 - HALF_LINE / d**2
    return jnp.where(inside, jnp.log1p(jnp.maximum(gain, 0)) / 2, 0)


def fisher_liminf(relative_error: Numbers) -> Float[Array, "..."]:
    """liminf r^2 n^2 v(n) >= (8 / 27) [|a1'| - |a1| r^(2/3)]_+^3.

    Args:
        relative_error: r, in (0, 1).

    Returns:
        The bound; 0 for r >= 0.2876, and C* for r -> 0, slowly.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; the derivation is reviewed, not published.
    """
    (r,) = check_ranges(relative_error=relative_error)
    return 8 / 27 * jnp.maximum(AIRY_SLOPE_ZERO - AIRY_ZERO * jnp.cbrt(r) ** 2, 0) ** 3


def fisher_limsup(relative_error: float | int) -> float:
    """limsup r^2 n^2 v(n) >= r^2 min{I(G) : E|exp(W) - 1| <= r} / 2, for any r.

    By duality the maximum over lambda of (e0(lambda) - lambda r) / 2, e0 the ground energy of -4 d^2/dw^2 +
    lambda |exp(w) - 1|: from finite differences, two spacings extrapolated.

    Args:
        relative_error: r, in (0, 1).

    Returns:
        The bound, to 1e-6 relative, a Python number. It bounds the limsup; where n^2 v(n) converges, the limit.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; the derivation is reviewed, not published.

    Example:
        >>> print(f"{fisher_limsup(0.25):.4f}")
        0.2942
    """
    check_ranges(relative_error=relative_error)
    r = float(relative_error)
    best = scipy.optimize.minimize_scalar(
        lambda log_weight: -_dual(math.exp(log_weight), r),
        bounds=_weights(r),
        method="bounded",
        options={"xatol": 1e-5},
    )
    return -best.fun * r * r


def _weights(r):
    """Where the best log lambda lies: for small r it is that of |w| in the place of |exp(w) - 1|."""
    centre = math.log(32 * AIRY_SLOPE_ZERO**3 / 27 / r**3)
    return centre - 3, centre + 3


def _dual(weight: float, r: float) -> float:
    coarse, fine = (_ground_energy(weight, points) for points in (1000, 2000))
    return ((4 * fine - coarse) / 3 - weight * r) / 2


def _ground_energy(weight: float, points: int) -> float:
    """e0 by finite differences, 0 being a grid point: the kink there then costs no order."""
    unit = (4 / weight) ** (1 / 3)
    low, high = -24 * unit - 24 / math.sqrt(weight), min(12 * unit, math.log1p(40 * unit) + 2)
    step = (high - low) / points
    w = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    diagonal = 8 / step**2 + weight * np.abs(np.expm1(w))
    off = np.full(w.size - 1, -4 / step**2)
    return float(scipy.linalg.eigh_tridiagonal(diagonal, off, eigvals_only=True, select="i", select_range=(0, 0))[0])


def generalised_gaussian_coefficient(power: Numbers) -> Float[Array, "..."]:
    """I (E|X|)^2 / 2 of noise with density exp(-|x|^p): its coefficient of 1 / (r n)^2, if it has one.

    Args:
        power: p, above 1/2; a budget at all orders exists for 1 <= p <= 2 only.

    Returns:
        The coefficient; 1 / pi for p = 2, least at p = 1.7614: 0.313574.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    from jax.scipy.special import gammaln

    (p,) = check_ranges(sigma=power)
    information = 2 * jnp.log(p) + gammaln(2 - 1 / p) - gammaln(1 / p)
    return jnp.exp(information + 2 * (gammaln(2 / p) - gammaln(1 / p))) / 2
