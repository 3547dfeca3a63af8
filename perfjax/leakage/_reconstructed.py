"""Leaked when an attacker who sees several statistics of a round reconstructs the user's record."""

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax.leakage._base import AbstractLeakage

__all__ = ["ReconstructedWithin"]

ACCOUNTANTS = ("zcdp", "rdp", "gdp", "basic")


class ReconstructedWithin(AbstractLeakage):
    r"""A user is leaked when the error of the best unbiased reconstruction of their record is at most the tolerance.

    A round is L statistics under one budget: ceil(L / 2) noisy means of all n users, and for the attacker of a user
    floor(L / 2) noisy means of the n - 1 others. An accountant shares the budget, which the mechanism's gamma spends
    on a single mean, out among them: each has the variance

        s^2 = gamma^2 kappa_L / (kappa_1 n),        kappa_L / kappa_1 = L            ("zcdp", "rdp", "gdp")
                                                                     = L^2 log(1.25 L / delta) / log(1.25 / delta)
                                                                                                   ("basic")

    in each of d coordinates, and the error of the round is that of one such mean. The attacker's least-variance
    unbiased estimate, n (average with the user) - (n - 1) (average without), misses the user's (clipped) record by
    N(0, V I), whatever the records are:

        V = s^2 (n^2 / L_in + (n - 1)^2 / L_out),        p = P(chi2_d <= tolerance^2 / V).

    The means of all users are the same for every attacker, so that users share their noise; the means without a user
    are that user's own. Given the former, users are leaked independently. Attackers do not pool what they see.

    Attributes:
        tolerance: greatest error, Euclidean and in units of the records, at which a record counts as reconstructed,
            above 0.
        releases: L, the statistics of a round, a whole number of at least 1. With one of them nobody is reconstructed,
            since nothing tells a user from the others (but a single user's mean is their record). A derivative by L is
            that of L_in and L_out both L / 2.
        delta: of the budget, in (0, 1), for "basic" only: the others share out a budget alike whatever it is.
        accountant: how the budget is shared out: "zcdp", "rdp" and "gdp" alike in proportion to 1 / L; "basic" the
            classic Gaussian calibration at (epsilon / L, delta / L).

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", section III (IN/OUT); that leaked
        users leave is ours.

    Example:
        >>> import perfjax as pj
        >>> mechanism = pj.GaussianMean(1.0, dim=12)
        >>> print(f"{pj.leak_probability(mechanism, ReconstructedWithin(20.0), 10):.3f}")
        0.475
    """

    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {
        "tolerance": ("tolerance", "units of the records"),
        "releases": ("L", "statistics of a round"),
        "delta": ("δ", "1"),
    }

    tolerance: Float[Array, "..."]
    releases: Float[Array, "..."]
    delta: Float[Array, "..."] | None
    accountant: str = eqx.field(static=True)

    def __init__(
        self,
        tolerance: Numbers,
        releases: Numbers = 2.0,
        accountant: str = "zcdp",
        *,
        delta: Numbers | None = None,
    ):
        self.accountant = _check.as_choice(accountant, "accountant", ACCOUNTANTS)
        if (accountant == "basic") != (delta is not None):
            raise ValueError('Argument `delta` must be given with accountant "basic", and only then.')
        tolerance, releases = _check.as_floats(tolerance=tolerance, releases=releases)
        self.tolerance = _check.in_range(tolerance, "tolerance", 0, open_low=True, open_high=True)
        self.releases = _check.whole(_check.in_range(releases, "releases", 1, open_high=True), "releases")
        self.delta = None
        if delta is not None:
            delta = _check.as_float(delta, "delta")
            self.delta = _check.in_range(delta, "delta", 0, 1, open_low=True, open_high=True)

    @property
    def copies(self) -> Float[Array, "..."]:
        """L_in: users share the average of so many noisy means."""
        return _halves(self.releases)[0]

    def released_noise(self, noise: Float[Array, "..."]) -> Float[Array, "..."]:
        """That of each mean, gamma sqrt(kappa_L / kappa_1)."""
        share = self.releases
        if self.delta is not None:  # accountant "basic"
            share = share**2 * (1 + jnp.log(share) / jnp.log(1.25 / self.delta))
        return noise * jnp.sqrt(share)

    def tells_users_apart(self, population: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether an attacker sees means with and without a user, or a single user's."""
        return (self.releases >= 2) | (population <= 1)

    def noise_without_user(self, population: Float[Array, ""], noise: Float[Array, ""]) -> Float[Array, ""]:
        """Standard deviation of an attacker's error due to the means without the user; infinite where there are none.

        In each coordinate, (n - 1) s / sqrt(L_out). What the means of all users add is n s / sqrt(L_in).
        """
        n = jnp.maximum(population, 1)
        without = _halves(self.releases)[1]
        single = self.released_noise(noise) / jnp.sqrt(n)
        known = jnp.where(without >= 1, without, 1)
        return jnp.where(self.tells_users_apart(n), (n - 1) * single / jnp.sqrt(known), jnp.inf)

    def noise_with_user(self, population: Float[Array, ""], noise: Float[Array, ""]) -> Float[Array, ""]:
        """Standard deviation of an attacker's error due to the means of all users, n s / sqrt(L_in)."""
        n = jnp.maximum(population, 1)
        return jnp.sqrt(n / self.copies) * self.released_noise(noise)


@jax.custom_jvp
def _halves(releases: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """L_in and L_out. They move in steps; their derivative is that of L / 2, not a silent 0."""
    return jnp.ceil(releases / 2), jnp.floor(releases / 2)


@_halves.defjvp
def _halves_jvp(primals, tangents):
    return _halves(*primals), (tangents[0] / 2, tangents[0] / 2)
