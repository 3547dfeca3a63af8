"""What solvers ask of a pair: its answers, with the limits that it need not know."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from perfjax import _check
from perfjax._check import Numbers
from perfjax._draws import normal_from_bits, rounded, with_slope_of
from perfjax.binomial import binomial_from_bits, uniform_from_bits
from perfjax.leakage._base import AbstractLeakage
from perfjax.leakage.pairs._base import LeakDistribution, Split, pair_of
from perfjax.mechanisms import AbstractMechanism

__all__ = [
    "check_count_level",
    "check_pair",
    "leak_distribution",
    "leak_probability",
    "leaked_count",
    "shared_weights",
    "split",
]


def check_pair(mechanism: AbstractMechanism, leakage: AbstractLeakage) -> None:
    """Raise a `ValueError` if perfjax does not know what `leakage` means for `mechanism`."""
    pair_of(mechanism, leakage)


def check_count_level(
    mechanism: AbstractMechanism, leakage: AbstractLeakage, needed: str, *, instead: str | None = "use `simulate_users`"
) -> None:
    """Raise a `ValueError` if leaks can't be counted without following every user.

    Args:
        mechanism: what releases.
        leakage: what counts as leaked.
        needed: the method of `AbstractPair` by which they are counted, "leaks" or "count_release".
        instead: what else the message advises, beside the nearest mechanism whose leaks can be counted; None for
            nothing.

    Raises:
        ValueError: for a pair that leaves `needed` out; for a `GaussianMean` with clipping that binds, or with a
            covariance that is not one number.
    """
    gap = pair_of(mechanism, leakage, needed).count_gap(mechanism, leakage)
    if gap is not None:
        hints = [gap.hint, *([] if instead is None else [instead])]
        raise ValueError(f"The count of leaked users has no closed law for {gap.what}: {', or '.join(hints)}.")


def split(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
) -> Split:
    """P(leaked) and P(spared) for one release to `population` users with noise `noise`, both scalar."""
    exposed, population, noise = _guarded(mechanism, leakage, population, noise)
    leaked, spared = pair_of(mechanism, leakage).split(mechanism, leakage, population, noise)
    # Quadrature weights sum to 1 up to rounding only.
    return Split(*(jnp.clip(jnp.where(exposed, sure, p), 0, 1) for sure, p in ((1, leaked), (0, spared))))


def shared_weights(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
) -> tuple[Float[Array, " shared"], Float[Array, " shared"]]:
    """Nodes and weights for expectations over what the users of a release share.

    Of a Gaussian mean in float64, for thresholds from 1e-3 to 3, noise from 0.01 to 100 and 2 to 1e6 users, the mean
    leak probability is then within 1e-6 of its value, and within 5e-6 for one dimension. Where everybody is leaked for
    sure, so they are at every node, and the weights mean nothing.
    """
    _, population, noise = _guarded(mechanism, leakage, population, noise)
    return pair_of(mechanism, leakage).shared_noise(mechanism, leakage, population, noise)


def leak_distribution(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
    shared: Float[Array, ""],
) -> LeakDistribution:
    """The distribution of the leaked count given what users share.

    Of a mean that is chi2 with d degrees of freedom, the squared length of the noise over its standard deviation; a
    release of several copies of a mean shares the average of their noise. Of a released count, it is 1 if it leaks
    everybody and 0 if nobody.
    """
    exposed, population, noise = _guarded(mechanism, leakage, population, noise)
    found = pair_of(mechanism, leakage).leaks(mechanism, leakage, population, noise, shared)
    certain = 1.0, 0.0, 0.0, 1.0  # leaked, spared, spread, both
    return LeakDistribution(*(jnp.where(exposed, limit, value) for limit, value in zip(certain, found, strict=True)))


def leaked_count(
    population: Float[Array, ""], leaks: LeakDistribution, word: UInt32[Array, ""], *, independent: bool
) -> Float[Array, ""]:
    """A draw of the leaked count K from one random word, given the shared noise.

    A binomial where users are then leaked independently, else a rounded normal of the mean and the variance of `leaks`,
    enumerated for one and two users. Its derivative is that of a quantile, or of the expectation of what is enumerated.
    """
    n = population
    if independent:
        return binomial_from_bits(word, n, leaks.leaked, q=leaks.spared)
    spread = jnp.maximum(n * leaks.spread, jnp.finfo(n.dtype).tiny)
    many = jnp.clip(rounded(n * leaks.leaked + jnp.sqrt(spread) * normal_from_bits(word, n.dtype)), 0, n)
    u = uniform_from_bits(word, n.dtype)
    exactly_one = 2 * (leaks.leaked - leaks.both)
    two = (u < leaks.both).astype(n.dtype) + (u < leaks.both + exactly_one).astype(n.dtype)
    one = (u < leaks.leaked).astype(n.dtype)
    few = with_slope_of(n * leaks.leaked, jnp.where(n > 1.5, two, jnp.where(n > 0.5, one, 0)))
    return jnp.where(n > 2.5, many, few)


def _guarded(mechanism, leakage, population, noise) -> tuple[Bool[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Whether everybody is leaked for sure, and a population and a noise that are harmless where that is so.

    For a double `where`: a limit is evaluated at harmless values, so that neither it nor its derivative is NaN.
    """
    exposed = pair_of(mechanism, leakage).exposed(mechanism, leakage, population, noise)
    # So many users are endlessly many, and what is computed of them does not overflow.
    population = jnp.minimum(population, jnp.finfo(population.dtype).max ** 0.6)
    no_noise = exposed & (noise == mechanism.no_privacy)
    return exposed, jnp.where(exposed, 2, population), jnp.where(no_noise, 1, noise)


def leak_probability(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Numbers,
    noise: Numbers | None = None,
) -> Float[Array, "..."]:
    """The probability p that a user is leaked by one release.

    Args:
        mechanism: what releases.
        leakage: what counts as leaked.
        population: n, the users of the release, at least 0. Broadcasts against `noise`.
        noise: the mechanism's noise, if not its own.

    Returns:
        p in [0, 1]. 1 where there is no noise (but for `ReconstructedWithin` of one statistic, which tells nobody from
        the others) and, for `LikelihoodRatioAbove` of a mean, where n <= 1: the likelihood ratio of a single user is
        undefined.

    Raises:
        ValueError: if the pair is not supported, or an argument is out of its range.
    """
    check_pair(mechanism, leakage)
    population = _check.in_range(_check.as_float(population, "population"), "population", 0)
    noise = mechanism.noise if noise is None else mechanism.check_noise(noise)
    mechanism, leakage, population, noise = _check.one_dtype((mechanism, leakage, population, noise))
    one = jnp.vectorize(lambda n, x: split(mechanism, leakage, n, x).leaked)
    return one(population, noise)
