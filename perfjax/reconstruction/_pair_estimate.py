"""The maximum likelihood estimate of two records from two noisy moments, exactly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers, as_floats, fail, in_range

__all__ = ["pair_estimate"]


def pair_estimate(moments: Numbers, *, variances: Numbers, radius: ArrayLike = 1.0) -> Float[Array, "... 2"]:
    """The two records in [-R, R] most likely to have given two noisy moments.

    Minimises (y_1 - (z_1 + z_2)/2)²/v_1 + (y_2 - (z_1² + z_2²)/2)²/v_2. If moments can be met, they are. Otherwise
    the minimum lies where the records are equal, or one of them is at an end: on each of these three arcs the
    stationary points are roots of a cubic. The least of all is the global minimum; a local search would not
    do, since the set of possible moments is not convex.

    Args:
        moments: y_1 and y_2 along the last axis: noisy mean and mean square, in the unit of the records and its
            square.
        variances: v_1 and v_2 > 0 of their noise, along the last axis.
        radius: R > 0.

    Returns:
        z_1 <= z_2. Elementwise: a million at once need no vmap.

    Raises:
        ValueError: if an argument is out of range, or there are not two moments and variances.

    Source: ours; the estimator of "Reconstruction Limits for Repeated Differentially Private Aggregates", Section V-C.

    Example:
        >>> print(pair_estimate([[0.0, 0.25], [3.0, 3.0]], variances=[1.0, 1.0]))
        [[-0.5  0.5]
         [ 1.   1. ]]
    """
    y, v, radius = as_floats(moments=moments, variances=variances, radius=radius)
    for name, value in (("moments", y), ("variances", v)):
        if not value.ndim or value.shape[-1] != 2:
            raise fail(name, "hold two numbers along their last axis", f"of shape {value.shape}")
    v = in_range(v, "variances", 0.0, open_low=True, open_high=True)
    radius = in_range(radius, "radius", 0.0, open_low=True, open_high=True)
    first, second = y[..., 0] / radius, y[..., 1] / radius**2
    weight = v[..., 1] / v[..., 0] / radius**2 / 2
    low, high = _in_unit_box(*jnp.broadcast_arrays(first, second, weight))
    return jnp.stack([low, high], -1) * radius[..., None]


@jax.jit
def _in_unit_box(y1, y2, a):
    """At R = 1, with a = v_2/(2 v_1)."""
    spread = y2 - y1 * y1
    gap = jnp.sqrt(jnp.maximum(spread, 0))
    feasible = (spread >= 0) & (jnp.abs(y1) + gap <= 1)
    low, high, least = y1 - gap, y1 + gap, jnp.where(feasible, -1, jnp.inf).astype(y1.dtype)
    p = a + 1 - 2 * y2

    # As a loop: as one expression XLA fuses it with the two columns of the result, and computes all of it for each.
    def arc(best, cubic):
        linear, constant, ends = cubic
        low, high, least = best
        for root in _outer_roots(linear, constant):
            t = jnp.clip(root, -1, 1)
            lower, upper = jnp.where(ends < 0, -1, t), jnp.where(ends > 0, 1, t)
            misfit = 2 * a * (y1 - (lower + upper) / 2) ** 2 + (y2 - (lower * lower + upper * upper) / 2) ** 2
            better = misfit < least
            low, high = jnp.where(better, lower, low), jnp.where(better, upper, high)
            least = jnp.where(better, misfit, least)
        return (low, high, least), None

    linear = jnp.stack([a - y2, p, p])  # equal records; the upper at 1; the lower at -1
    constant = jnp.stack([-a * y1, a * (1 - 2 * y1), -a * (1 + 2 * y1)])
    (low, high, _), _ = jax.lax.scan(arc, (low, high, least), (linear, constant, jnp.array([0, 1, -1])))
    return low, high


def _outer_roots(p, q):
    """The greatest and the least real root of t³ + p t + q. Between them the quartic has its maximum, if anything."""
    third, half = p / 3, q / 2
    discriminant = half * half + third**3
    single = discriminant > 0
    u = jnp.cbrt(jnp.abs(half) + jnp.sqrt(jnp.where(single, discriminant, 0)))
    alone = jnp.where(half > 0, -1, 1) * (u - third / jnp.where(u > 0, u, 1))
    scale = jnp.sqrt(jnp.maximum(-third, 0))
    cosine = -half / jnp.where(scale > 0, scale, 1) ** 3
    turn = jnp.cos(jnp.arccos(jnp.clip(cosine, -1, 1)) / 3)
    side = jnp.sqrt(3 * (1 - turn) * (1 + turn))
    return [_polished(jnp.where(single, alone, scale * root), p, q) for root in (2 * turn, -turn - side)]


def _polished(t, p, q):
    """One Newton step: what the closed form is short of full precision, squared."""
    slope = 3 * t * t + p
    return t - jnp.where(slope != 0, (t * (t * t + p) + q) / jnp.where(slope != 0, slope, 1), 0)
