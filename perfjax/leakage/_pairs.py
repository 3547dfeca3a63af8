"""Tables of (mechanism, leakage rule) pairs, and the leak probability of a pair."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.mechanisms import AbstractMechanism

__all__ = ["SPLITS", "AbstractLeakage", "PairTable", "Split", "check_pair", "guarded", "leak_probability", "split"]


class AbstractLeakage(eqx.Module):
    """What it means to be leaked.

    Attributes:
        independent: whether users are leaked independently of each other, given the noise that they share.
    """

    independent: eqx.AbstractClassVar[bool]

    @property
    @abc.abstractmethod
    def copies(self) -> Float[Array, "..."] | int:
        """How many noisy copies of the statistic a round releases: users share the average of their noise."""

    @abc.abstractmethod
    def released_noise(self, noise: Float[Array, "..."]) -> Float[Array, "..."]:
        """The noise of each copy where the mechanism's would be `noise` for a single one."""

    @abc.abstractmethod
    def exposes(self, population: Float[Array, ""], noise_free: Bool[Array, ""]) -> Bool[Array, ""]:
        """Whether everybody is leaked for sure: a limit that the functions of the pairs need not know."""


class Split(NamedTuple):
    """How a release splits the users: P(leaked) and P(not leaked), neither one 1 minus the other where tiny.

    Error at most 1e-9 in float64 and 1e-5 in float32; of a mean whose clipping binds, 1e-3 relative.
    """

    leaked: Float[Array, "..."]
    kept: Float[Array, "..."]


class PairTable:
    """One function for each (mechanism, leakage rule) pair that `purpose` supports."""

    def __init__(self, purpose: str):
        self.purpose = purpose
        self.functions: dict[tuple[type, type], Callable] = {}

    def enter(self, mechanism: type[AbstractMechanism], leakage: type[AbstractLeakage]) -> Callable:
        """Decorate the function of a pair."""

        def entered(function):
            self.functions[mechanism, leakage] = function
            return function

        return entered

    def check(self, mechanism: AbstractMechanism, leakage: AbstractLeakage) -> None:
        """Raise a `ValueError` that names the supported pairs if this is none of them."""
        if (type(mechanism), type(leakage)) not in self.functions:
            known = ", ".join(f"({m.__name__}, {rule.__name__})" for m, rule in self.functions)
            given = f"({type(mechanism).__name__}, {type(leakage).__name__})"
            requirement = f"be one of the pairs {known} for {self.purpose}"
            raise ValueError(f"Arguments `mechanism`, `leakage` must {requirement}, but are {given}.")

    def function(self, mechanism: AbstractMechanism, leakage: AbstractLeakage) -> Callable:
        """The function of a pair."""
        self.check(mechanism, leakage)
        return self.functions[type(mechanism), type(leakage)]


SPLITS = PairTable("a leak probability")
"""Functions of (mechanism, leakage, population, noise), all scalar, that return a `Split`."""


def check_pair(mechanism: AbstractMechanism, leakage: AbstractLeakage) -> None:
    """Raise a `ValueError` if perfjax does not know what `leakage` means for `mechanism`."""
    SPLITS.check(mechanism, leakage)


def split(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
) -> Split:
    """P(leaked) and P(not leaked) for one release to `population` users with noise `noise`.

    Where everybody is leaked for sure, the functions of the pairs need not know it.
    """
    exposed, population, noise = guarded(mechanism, leakage, population, noise)
    leaked, kept = SPLITS.function(mechanism, leakage)(mechanism, leakage, population, noise)
    # Quadrature weights sum to 1 up to rounding only.
    return Split(*(jnp.clip(jnp.where(exposed, sure, p), 0, 1) for sure, p in ((1, leaked), (0, kept))))


def guarded(
    mechanism: AbstractMechanism,
    leakage: AbstractLeakage,
    population: Float[Array, ""],
    noise: Float[Array, ""],
) -> tuple[Bool[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Whether everybody is leaked for sure, and a population and a noise that are harmless where that is so.

    For a double `where`: a limit is evaluated at harmless values, so that neither it nor its derivative is NaN.
    """
    noise_free = noise == mechanism.no_privacy
    crowd = population if mechanism.needs_crowd else jnp.full_like(population, jnp.inf)
    exposed = leakage.exposes(crowd, noise_free)
    # So many users are endlessly many, and what is computed of them does not overflow.
    population = jnp.minimum(population, jnp.finfo(population.dtype).max ** 0.6)
    return exposed, jnp.where(exposed, 2, population), jnp.where(noise_free, 1, noise)


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
        the others) and, for `LikelihoodRatioAbove`, where n <= 1: the likelihood ratio of a single user is undefined.

    Raises:
        ValueError: if the pair is not supported, or an argument is out of its range.
    """
    check_pair(mechanism, leakage)
    population = _check.in_range(_check.as_float(population, "population"), "population", 0)
    noise = mechanism.noise if noise is None else mechanism.check_noise(noise)
    mechanism, leakage, population, noise = _check.one_dtype((mechanism, leakage, population, noise))
    one = jnp.vectorize(lambda n, x: split(mechanism, leakage, n, x).leaked)
    return one(population, noise)
