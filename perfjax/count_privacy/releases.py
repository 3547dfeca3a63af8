"""Designing a release of counts by name, and making it."""

import secrets
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from perfjax import _check, accounting
from perfjax._check import Numbers
from perfjax.binomial import normal_quantile, uniform_from_bits
from perfjax.count_privacy._arguments import as_counts, check_ranges, exact_counts
from perfjax.count_privacy._exact import whole_numbers
from perfjax.count_privacy._release import AbstractCountRelease
from perfjax.count_privacy._threefry import two_words
from perfjax.count_privacy.airy import LogAiry
from perfjax.count_privacy.log_gaussian import LogGaussian
from perfjax.count_privacy.spacing import Spacing

__all__ = ["DESIGNS", "design", "epsilon", "release", "simulate_release"]

DESIGNS = ("log-gaussian", "log-airy", "spacing")
"""The mechanisms by their names."""

UNROUNDED = "Counts released without rounding are for simulations: floating-point noise gives counts away."


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


def release(mechanism: AbstractCountRelease, counts: ArrayLike | list | tuple) -> np.ndarray:
    """A private release of counts of disjoint groups, to be published: independent noise for each.

    Whole numbers, drawn exactly from the probabilities whose budget `mechanism.budget` states: no number is rounded on
    the way to them, and the bits come from the operating system (`secrets`), so that nobody can repeat or undo the
    noise. There is no seed, and nothing to differentiate: for that, `simulate_release`. The parameters are taken as
    they are, to the last bit. A million counts of up to 1e9 take seconds; larger ones up to a minute or two. How long
    it takes, which depends on the counts, is not hidden.

    Args:
        mechanism: what releases.
        counts: n of each group, whole, in [0, 2^53]. Which groups there are must be public: list all that could be,
            with their zeros.

    Returns:
        Released counts, of dtype int64 and the shape of `counts`: the mechanism's value, rounded up with a probability
        that keeps the mean, so that `mechanism.error` holds. What is above 2^62 is released as 2^62.

    Raises:
        ValueError: for a count that is none, with its row; for counts or a mechanism that are traced.

    Source: "Better Privacy Guarantees for Larger Groups", section 4; how it is drawn is ours. OpenDP's exact samplers
        are for noise on a grid, on which levels log(n + c) do not lie.

    Example:
        >>> mechanism = design("log-gaussian", 0.1)
        >>> release(mechanism, [0, 3, 1000]).dtype
        dtype('int64')
    """
    _check.as_kind(mechanism, "mechanism", AbstractCountRelease)
    if not _check.is_known(*jax.tree.leaves((counts, mechanism))):
        raise ValueError("A release can't be traced (jit, vmap, grad); `simulate_release` can.")
    return whole_numbers(mechanism, exact_counts(counts), secrets.token_bytes)


def simulate_release(
    mechanism: AbstractCountRelease, counts: Numbers, *, key: Key[Array, ""], rounded: bool = True
) -> Float[Array, "..."]:
    """What `release` would give, for simulations: fast, repeatable, differentiable. Not to be published.

    Floating-point noise gives counts away. In float32 one release of ten million tells n from n - 1 with 55 % accuracy,
    where its budget allows 50.00003 %; not rounded, one in eight values that a million can take in float64 is out of
    the reach of 999,999.

    Args:
        mechanism: what releases.
        counts: n of each group, whole, at least 0. In float32 counts above 1.7e7 are themselves rounded, and noise has
            32 bits: none beyond 6.3 standard deviations, as has a probability of 2e-10.
        key: a typed key. Who knows it can undo the noise.
        rounded: round to whole numbers, up with a probability that keeps the mean: so the error at whole counts stays
            as it is. If not, a `UserWarning` says that the values must not be published.

    Returns:
        Released counts, at least 0. Not differentiable through the rounding (its derivative is a silent 0): leave it
        out, which has the same expected error.

    Raises:
        ValueError: for a count that is none, with its row.

    Source: "Better Privacy Guarantees for Larger Groups", section 4.

    Example:
        >>> mechanism = design("log-gaussian", 0.1)
        >>> simulate_release(mechanism, [0, 3, 1000], key=jax.random.key(0)).shape
        (3,)
    """
    _check.as_kind(mechanism, "mechanism", AbstractCountRelease)
    if not rounded:
        warnings.warn(UNROUNDED, stacklevel=2)
    return _simulate(mechanism, as_counts(counts), key, rounded)


@eqx.filter_jit
def _simulate(mechanism, counts, key, rounded):
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
        return accounting.gaussian_epsilon(delta=delta, mu=accounting.mu_from_rho(budget))
    return accounting.zcdp_epsilon(rho=budget, delta=delta)
