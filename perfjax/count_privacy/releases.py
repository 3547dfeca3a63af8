"""Designing a release of counts by name, and making it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from perfjax import _check, accounting
from perfjax._check import Numbers
from perfjax.binomial import normal_quantile, uniform_from_bits
from perfjax.count_privacy._arguments import as_counts, check_ranges
from perfjax.count_privacy._release import AbstractCountRelease
from perfjax.count_privacy._threefry import two_words
from perfjax.count_privacy.airy import LogAiry
from perfjax.count_privacy.log_gaussian import LogGaussian
from perfjax.count_privacy.spacing import Spacing

__all__ = ["DESIGNS", "design", "epsilon", "release"]

DESIGNS = ("log-gaussian", "log-airy", "spacing")
"""The mechanisms by their names."""


def design(mechanism: str, relative_error: Numbers, *, shift: Numbers | None = None) -> AbstractCountRelease:
    """A release whose error is below r max(n, 1) at every count n.

    Args:
        mechanism: "log-gaussian", "log-airy" or "spacing".
        relative_error: r, in (0, 1); for "spacing" in [0.02, 0.25].
        shift: c, above 0, 1 if not given; "spacing" has none.

    Returns:
        The mechanism.

    Raises:
        ValueError: if an argument is out of range, or a shift is given to "spacing".

    Example:
        >>> mechanism = design("spacing", 0.1)
        >>> print(f"{mechanism.budget(1.0):.2f} {mechanism.budget(100.0):.5f}")
        7.13 0.00320
    """
    _check.as_choice(mechanism, "mechanism", DESIGNS)
    if mechanism == "spacing":
        if shift is not None:
            raise _check.fail("shift", 'be left out for "spacing"', shift)
        return Spacing.from_tolerance(relative_error)
    kind = {"log-gaussian": LogGaussian, "log-airy": LogAiry}[mechanism]
    return kind.from_tolerance(relative_error, 1.0 if shift is None else shift)


def release(
    mechanism: AbstractCountRelease, counts: Numbers, *, key: Key[Array, ""], rounded: bool = True
) -> Float[Array, "..."]:
    """A private release of counts of disjoint groups: independent noise for each.

    Args:
        mechanism: what releases.
        counts: n of each group, whole, at least 0. In float32 counts above 1.7e7 are themselves rounded, and noise has
            32 bits: none beyond 6.3 standard deviations, as has a probability of 2e-10.
        key: a typed key. Who knows it can undo the noise.
        rounded: round to whole numbers, up with a probability that keeps the mean: so the error at whole counts stays
            as it is.

    Returns:
        Released counts, at least 0. Not differentiable through the rounding (its derivative is a silent 0): leave it
        out, which has the same expected error.

    Raises:
        ValueError: for a count that is none, with its row.

    Source: "Better Privacy Guarantees for Larger Groups", section 4.

    Example:
        >>> mechanism = design("log-gaussian", 0.1)
        >>> release(mechanism, [0, 3, 1000], key=jax.random.key(0)).shape
        (3,)
    """
    _check.as_kind(mechanism, "mechanism", AbstractCountRelease)
    return _release(mechanism, as_counts(counts), key, rounded)


@eqx.filter_jit
def _release(mechanism, counts, key, rounded):
    mechanism, counts = _check.one_dtype((mechanism, counts))
    if counts.dtype == jnp.float32:
        for_noise, for_rounding = two_words(key, counts.shape)
        normal = normal_quantile(*(uniform_from_bits(word, counts.dtype) for word in (for_noise, ~for_noise)))
        uniform = uniform_from_bits(for_rounding, counts.dtype)
    else:
        for_noise, for_rounding = jax.random.split(key)
        normal = jax.random.normal(for_noise, counts.shape, counts.dtype)
        uniform = jax.random.uniform(for_rounding, counts.shape, counts.dtype)
    value = mechanism.released(counts, normal)
    return jnp.floor(value + uniform) if rounded else value


def epsilon(mechanism: AbstractCountRelease, count: Numbers, delta: Numbers) -> Float[Array, "..."]:
    """epsilon of the (epsilon, delta) guarantee of one member of a group of n.

    Args:
        mechanism: what releases.
        count: n, whole, at least 0.
        delta: in (0, 1).

    Returns:
        The least epsilon for mechanisms that are exactly Gaussian, before clipping; else what zCDP implies.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check.as_kind(mechanism, "mechanism", AbstractCountRelease)
    (delta,) = check_ranges(delta=delta)
    budget = mechanism.budget(count)
    if mechanism.exactly_gaussian:
        return accounting.gaussian_epsilon(delta, accounting.mu_from_rho(budget))
    return accounting.zcdp_epsilon(budget, delta)
