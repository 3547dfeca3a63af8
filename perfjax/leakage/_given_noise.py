"""How many users a release leaks, given what they share: the size of the noise that was added.

All users of a release of a mean see the same noise vector eta, so their leaks are correlated through ||eta||. Given it,
each is leaked with one probability p(||eta||). By the likelihood ratio the leaked count then fluctuates *less* than a
binomial, because the records' residuals from their mean sum to zero; by reconstruction it is a binomial. Randomized
response shares nothing; of a released count all users see the same number, and all are leaked or none.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.leakage._likelihood_ratio import LikelihoodRatioAbove, across
from perfjax.leakage._pairs import AbstractLeakage, PairTable, guarded
from perfjax.leakage._reconstructed import ReconstructedWithin, bounded_ratio
from perfjax.leakage._true_bit import TrueBitKept
from perfjax.mechanisms import AbstractMechanism, GaussianMean, RandomizedResponse, ShiftedLogCount

__all__ = ["GivenNoise", "check_count_level", "given_noise"]


class GivenNoise(NamedTuple):
    """The law of the leaked count K among n users, given the shared noise.

    Attributes:
        leaked: p, the probability that a user is leaked.
        kept: 1 - p.
        spread: Var(K) / n, held to at most p (1 - p). By the likelihood ratio it is the limit for many users: wrong by
            up to 10 % at n = 3, 6 % at n = 10 and 2 % at n = 30, found by sampling. The rest is exact for any n.
        both: for n = 2, the probability that both are leaked.
    """

    leaked: Float[Array, ""]
    kept: Float[Array, ""]
    spread: Float[Array, ""]
    both: Float[Array, ""]


_LAWS = PairTable("a law of the leaked count")


def given_noise(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
    shared: Float[Array, ""],
) -> GivenNoise:
    """The law of the leaked count given `shared` ~ chi2 with `shared_dimensions` degrees of freedom.

    A release of several copies of a mean shares the average of their noise. Of a released count, `shared` is 1 if it
    leaks everybody and 0 if nobody.
    """
    exposed, population, noise = guarded(mechanism, leakage, population, noise)
    law = _LAWS.function(mechanism, leakage)(mechanism, leakage, population, noise, shared)
    certain = 1.0, 0.0, 0.0, 1.0  # leaked, kept, spread, both
    return GivenNoise(*(jnp.where(exposed, limit, value) for limit, value in zip(certain, law, strict=True)))


def check_count_level(mechanism: AbstractMechanism, *, instead: str | None = "use `simulate_users`") -> None:
    """Raise a `ValueError` if leaks can't be counted without following every user.

    Args:
        mechanism: what releases.
        instead: what else the message advises, beside the nearest mechanism whose leaks can be counted; None for
            nothing.

    Raises:
        ValueError: for a `GaussianMean` with clipping that binds, or with a covariance that is not one number.
    """
    if not isinstance(mechanism, GaussianMean) or not (mechanism.clips or mechanism.covariance.ndim):
        return
    hints = [_with_closed_law(mechanism), *([] if instead is None else [instead])]
    what = "clipping that binds" if mechanism.clips else "a covariance that is not one number"
    raise ValueError(f"The count of leaked users has no closed law for {what}: {', or '.join(hints)}.")


def _with_closed_law(mechanism):
    """The nearest mechanism that has one, in words."""
    if not mechanism.clips:
        return "give `covariance` one number"
    radius = mechanism.least_unclipped_radius()
    if radius is None:
        return "give `clip_radius` a value that never binds"
    # Rounded up: what is printed must work.
    least = math.ceil(100 * radius) / 100
    clip = mechanism.clip_radius
    now = f" in place of {float(clip):g}" if np.ndim(clip) == 0 and _check.is_known(clip) else ""
    return (
        f"give `clip_radius` at least {least:.2f}{now} (fewer than 1 in 1e9 records of {mechanism.dim} features clip)"
    )


@_LAWS.enter(ShiftedLogCount, LikelihoodRatioAbove)
def _all_or_none(mechanism, leakage, population, noise, shared) -> GivenNoise:
    del mechanism, leakage, population, noise
    return GivenNoise(leaked=shared, kept=1 - shared, spread=jnp.zeros_like(shared), both=shared)


@_LAWS.enter(RandomizedResponse, TrueBitKept)
def _true_bit(mechanism, leakage, population, noise, shared) -> GivenNoise:
    del mechanism, leakage, population, shared
    p, kept = jax.nn.sigmoid(noise), jax.nn.sigmoid(-noise)
    return GivenNoise(p, kept, p * kept, p * p)


@_LAWS.enter(GaussianMean, LikelihoodRatioAbove)
def _gaussian_mean(mechanism, leakage, population, noise, shared) -> GivenNoise:
    """By one quadrature over the part b ~ chi2_{d-1} of the residual across the noise; exact but for `spread`.

    In units of the residual's standard deviation, with a ~ N(0, 1) its part along the noise and
    H = (n - 1) ||eta||: leaked <=> a^2 + 2 a H + b > c. Given b, a user is *kept* for a between two roots, and only for
    b below H^2 + c. Var(K) / n = p (1 - p) - E[1{leaked} a]^2 but for terms of order 1 / n: residuals are correlated by
    -1 / (n - 1), and all but the first Hermite coefficient of 1{leaked} are left out.
    """
    n, v = population, mechanism.covariance
    shift = jnp.sqrt(shared * (n - 1) / v) * noise
    level = 2 * leakage.threshold * noise**2 * (n - 1) / v
    if leakage.outside == "recomputed":
        gap = leakage.threshold - mechanism.dim / 2 * jnp.log1p(1 / (n - 1))
        level = noise**2 * (2 * n * gap + shared) / v
    limit = shift**2 + level

    def kept_between(rest):
        root = jnp.sqrt(jnp.maximum(limit - rest, jnp.finfo(limit.dtype).tiny))
        return -(shift + root), (level - rest) / (shift + root)

    rest, weight = across(limit, mechanism.dim)
    low, high = kept_between(rest)
    kept = jnp.maximum(product(weight, _below(high) - _below(low)), 0)
    pull = product(weight, _density(high) - _density(low))
    leaked = 1 - kept
    # With two users the residuals are opposite: both are kept for |a| below the upper root, which is positive for b
    # below `level` only. That is a rule of its own: with the one above, the kink at `level` costs 3e-3.
    rest, weight = across(level, mechanism.dim)
    _, high = kept_between(rest)
    neither = product(weight, 2 * _below(high) - 1)
    both = jnp.clip(1 - 2 * kept + neither, 0, 1)
    return GivenNoise(leaked, kept, jnp.maximum(leaked * kept - pull**2, 0), both)


@_LAWS.enter(GaussianMean, ReconstructedWithin)
def _reconstruction(mechanism, leakage, population, noise, shared) -> GivenNoise:
    """Given the means of all users, an attacker's error is normal about a vector of known length.

    In units of what the means without the user add: leaked <=> (h + a)^2 + b <= c, with a ~ N(0, 1), b ~ chi2_{d-1}
    and h the length of the shared part. A single user has no such means: there what is shared is averaged out, which
    for one user is the same law.
    """
    own, common = (of(population, noise) for of in (leakage.noise_without_user, leakage.noise_with_user))
    told, alone = own < jnp.inf, own == 0
    unit = jnp.where(told & ~alone, own, common)
    shift = jnp.where(alone, 0, bounded_ratio(common * jnp.sqrt(shared), unit))
    limit = bounded_ratio(leakage.tolerance, unit) ** 2
    rest, weight = across(limit, mechanism.dim)
    root = square_root(limit - rest)
    leaked = jnp.clip(product(weight, _below(root - shift) - _below(-root - shift)), 0, 1)
    leaked = jnp.where(told, leaked, 0)
    return GivenNoise(leaked, 1 - leaked, leaked * (1 - leaked), leaked * leaked)


def _below(x):
    return jax.lax.erfc(jnp.clip(x, -40, 40) * -math.sqrt(0.5)) / 2


def _density(x):
    return jnp.exp(-(jnp.clip(x, -40, 40) ** 2) / 2) * (1 / math.sqrt(2 * math.pi))
