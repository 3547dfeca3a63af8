"""What one transition of a series says about the parameters."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from perfjax.participation import Participation

__all__ = ["Terms", "chosen", "masked", "of_counts"]


class Terms(NamedTuple):
    """What each transition says, by its log probability and by two statistics.

    Of a count, the statistics are itself and its squared distance from its mean; of leavers and joiners, themselves.

    Attributes:
        log_probability: of what was observed.
        expected: means of the statistics.
        observed: the statistics.
        whitening: inverse root of their covariance.
        trusted: 1 for means, which are believed even where counts vary more than the model says, else 0.
        residual: of the next count, less `mean` and by `std`; NaN where there is none.
        mean: of the next count.
        std: its standard deviation.
    """

    log_probability: Float[Array, " terms"]
    expected: Float[Array, "terms 2"]
    observed: Float[Array, "terms 2"]
    whitening: Float[Array, "terms 2 2"]
    trusted: Float[Array, "terms 2"]
    residual: Float[Array, " terms"]
    mean: Float[Array, " terms"]
    std: Float[Array, " terms"]


def of_counts(
    who: Participation,
    log_p: Float[Array, " terms"],
    mean: Float[Array, " terms"],
    variance: Float[Array, " terms"],
    end: Float[Array, " terms"],
) -> Terms:
    """Of next counts alone."""
    std = jax.lax.stop_gradient(jnp.sqrt(variance))
    zero = jnp.zeros_like(std)
    inside = (end < who.cap) & (end > who.floor)
    residual = jnp.where(inside, (end - mean) / std, jnp.nan)
    # A mean beyond floor or cap has no slope there, and is none of what the count says.
    informs = jnp.where(inside, 1, 0)
    root = jnp.stack([informs / std, zero, zero, informs / (math.sqrt(2) * std**2)], axis=-1)
    observed = jnp.stack([end, (end - jax.lax.stop_gradient(mean)) ** 2], axis=-1)
    expected, whitening = jnp.stack([mean, variance], axis=-1), root.reshape(*root.shape[:-1], 2, 2)
    trusted = jnp.stack([zero + 1, zero], axis=-1)
    return Terms(log_p, expected, observed, whitening, trusted, residual, jax.lax.stop_gradient(mean), std)


def masked(found: Terms, seen: Bool[Array, " terms"]) -> Terms:
    """`found` where seen; elsewhere it says nothing."""
    still = found._replace(
        log_probability=jnp.zeros_like(found.log_probability),
        whitening=jnp.zeros_like(found.whitening),
        residual=jnp.full_like(found.residual, jnp.nan),
    )
    return chosen(seen, found, still)


def chosen(condition: Bool[Array, " terms"], one: Terms, other: Terms) -> Terms:
    """The terms of one where a condition holds, else of the other."""
    return jax.tree.map(lambda x, y: jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y), one, other)
