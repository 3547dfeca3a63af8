"""The next count of many users: a mixture over what they share of rounded normals."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax.calibration._shared import SharedLaw, is_continuous, over_shared, resolved
from perfjax.law._normal import log_tail
from perfjax.participation import Participation
from perfjax.scenario import Scenario

__all__ = ["log_mixture", "log_rounded_normal", "mixture_moments", "without_gaps"]

WIDE = 20.0  # standard deviations, in users, beyond which one user's width of a normal is its density


def mixture_moments(
    who: Participation, law: SharedLaw, n: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Mean and variance of the count after one release, before floor and cap."""
    growth, spread = who.growth_and_spread(law.given.leaked, law.given.spared, law.given.spread)
    mean = over_shared(growth, law.weight)
    between = over_shared((growth - mean[..., None]) ** 2, law.weight)
    within = over_shared(spread, law.weight)
    return n * mean, n * within + n * n * between + 1 / 12  # a rounded count varies by 1/12 more


def log_mixture(
    scenario: Scenario,
    law: SharedLaw,
    n: Float[Array, "..."],
    end: Float[Array, "..."],
    inflow: Float[Array, "..."],
) -> Float[Array, "..."]:
    """log P(the next count is `end`), after `inflow` others joined."""
    who = scenario.participation
    growth, spread = who.growth_and_spread(law.given.leaked, law.given.spared, law.given.spread)
    mean, variance = n[..., None] * growth, n[..., None] * spread
    if is_continuous(scenario):
        mean, variance = without_gaps(mean, variance, law.weight)
    mean = mean + inflow[..., None]
    varies = variance > 0
    std = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 0)
    log_each = log_rounded_normal(end[..., None], mean, std, who)
    return jax.nn.logsumexp(log_each, axis=-1, b=law.weight)


def without_gaps(
    mean: Float[Array, "... shared"], variance: Float[Array, "... shared"], weight: Float[Array, "... shared"]
) -> tuple[Float[Array, "... shared"], Float[Array, "... shared"]]:
    """Of very many users, counts given the shared noise are narrower than its nodes lie apart.

    Components are widened to the spacing and drawn together, which keeps mean and variance.
    """
    centre = over_shared(mean, weight)[..., None]
    between = over_shared((mean - centre) ** 2, weight)
    spread_out = between > 0
    share = over_shared(variance, weight) / jnp.where(spread_out, between, 1)
    smoothed = jnp.where(spread_out, jnp.maximum(resolved(weight.shape[-1]) - share, 0), 0)[..., None]
    return centre + jnp.sqrt(1 - smoothed) * (mean - centre), variance + smoothed * between[..., None]


def log_rounded_normal(
    end: Float[Array, "..."], mean: Float[Array, "..."], std: Float[Array, "..."], who: Participation
) -> Float[Array, "..."]:
    """log P(a normal rounds to `end`), with all that floor and cap hold back on them.

    In log space far into its tails: real counts lie there.
    """
    std = jnp.maximum(std, jnp.maximum(mean, 1) * 1e-6)
    z = (end - mean) / std
    wide = std > WIDE
    density = -(z**2) / 2 - jnp.log(std) - math.log(2 * math.pi) / 2 + (z**2 - 1) / (24 * std**2)
    # Half a user on both sides of `end`: the limits, both at or below 0 or the upper one just above it.
    high, low = 0.5 / std - jnp.abs(z), -jnp.abs(z) - 0.5 / std
    high_tail, low_tail = log_tail(jnp.abs(high)), log_tail(-low)
    least = jnp.finfo(z.dtype).tiny
    one_side = high_tail + jnp.log(-jnp.expm1(jnp.minimum(low_tail - high_tail, -least)))
    both_sides = jnp.log1p(-jnp.minimum(jnp.exp(high_tail) + jnp.exp(low_tail), 1 - 1e-6))
    inside = jnp.where(wide, density, jnp.where(high <= 0, one_side, both_sides))
    up_to_high = jnp.where(high <= 0, high_tail, jnp.log1p(-jnp.exp(high_tail)))
    from_low = jnp.log1p(-jnp.exp(low_tail))
    at_floor, at_cap = (jnp.where(side, from_low, up_to_high) for side in (z >= 0, z < 0))
    return jnp.where(end <= who.floor, at_floor, jnp.where(end >= who.cap, at_cap, inside))
