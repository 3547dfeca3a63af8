"""A Gaussian mean and an attacker who reconstructs records from several statistics of a round."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from perfjax._chi_square import tails
from perfjax._linear import product
from perfjax._normals import normals
from perfjax._square_root import square_root
from perfjax.leakage._reconstructed import ReconstructedWithin
from perfjax.leakage.pairs._across import across, below
from perfjax.leakage.pairs._base import LeakDistribution, Split
from perfjax.leakage.pairs._chi_square_noise import Step, around
from perfjax.leakage.pairs._gaussian_mean import AbstractGaussianMeanPair, drawn_records, squared_error
from perfjax.leakage.pairs.blocks import block_count
from perfjax.mechanisms import GaussianMean

__all__ = ["GaussianMeanReconstructed"]

FARTHEST = 1e6  # standard deviations beyond which an error never lies; its square overflows in no dtype


class GaussianMeanReconstructed(AbstractGaussianMeanPair, mechanism=GaussianMean, leakage=ReconstructedWithin):
    """Users share the average noise of the means of all users, as its squared length in units of its variance, chi2_d.

    The means without a user have noise of their own: given the former, users are leaked independently.
    """

    independent: ClassVar[bool] = True

    def exposed(self, mechanism, leakage, population, noise):
        return (noise == mechanism.no_privacy) & leakage.tells_users_apart(population)

    def split(self, mechanism, leakage, population, noise):
        """The squared error over its variance is a chi-square."""
        noise = _some(mechanism, noise)
        own, shared = (
            of_noise(population, noise) for of_noise in (leakage.noise_without_user, leakage.noise_with_user)
        )
        told = own < jnp.inf
        deviation = jnp.hypot(jnp.where(told, own, 0), shared)
        ratio = _bounded_ratio(leakage.tolerance, deviation)
        leaked, spared = tails(ratio**2, mechanism.dim)
        return Split(leaked=jnp.where(told, leaked, 0), spared=jnp.where(told, spared, 1))

    def released_noise(self, mechanism, leakage, noise):
        return leakage.released_noise(noise)

    def copies(self, leakage):
        return leakage.copies

    def shared_noise(self, mechanism, leakage, population, noise):
        n, d, noise = population, mechanism.dim, _some(mechanism, noise)
        own, common = (of(n, noise) for of in (leakage.noise_without_user, leakage.noise_with_user))
        unit = jnp.where((own < jnp.inf) & (own > 0), own, common)
        rate = _bounded_ratio(common, unit) ** 2
        middle = (_bounded_ratio(leakage.tolerance, unit) ** 2 - d) / rate
        return around(Step.of_noncentral(None, middle, rate, rate, d), d)

    def leaks(self, mechanism, leakage, population, noise, shared):
        """Given the means of all users, an attacker's error is normal about a vector of known length.

        In units of what the means without the user add: leaked <=> (h + a)^2 + b <= c, with a ~ N(0, 1),
        b ~ chi2_{d-1} and h the length of the shared part. A single user has no such means: there what is shared is
        averaged out, which for one user is the same law.
        """
        noise = _some(mechanism, noise)
        own, common = (of(population, noise) for of in (leakage.noise_without_user, leakage.noise_with_user))
        told, alone = own < jnp.inf, own == 0
        unit = jnp.where(told & ~alone, own, common)
        shift = jnp.where(alone, 0, _bounded_ratio(common * jnp.sqrt(shared), unit))
        limit = _bounded_ratio(leakage.tolerance, unit) ** 2
        rest, weight = across(limit, mechanism.dim)
        root = square_root(limit - rest)
        leaked = jnp.clip(product(weight, below(root - shift) - below(-root - shift)), 0, 1)
        leaked = jnp.where(told, leaked, 0)
        return LeakDistribution(leaked, 1 - leaked, leaked * (1 - leaked), leaked * leaked)

    def user_release(self, mechanism, leakage, users, noise, size, keys):
        """The error is that of the first of the means of all users; attackers take the average of these means."""
        n, dim = jnp.maximum(users, 1).astype(noise.dtype), mechanism.dim
        _, root, mean, _ = drawn_records(mechanism, users, n, size, keys)
        of_average, about_average = jax.random.normal(keys.once, (2, dim), noise.dtype)
        copies = leakage.copies
        spread = leakage.released_noise(noise) / jnp.sqrt(n)
        published = spread * (of_average / jnp.sqrt(copies) + about_average * jnp.sqrt(1 - 1 / copies))
        shared = leakage.noise_with_user(n, noise) * of_average
        own = leakage.noise_without_user(n, noise)

        def leaked(block):
            # n (average with z) - (n - 1) (average without z) - z, where all records have cancelled: computed, they
            # would leave their rounding times n.
            standard = normals(jax.random.fold_in(keys.responses, block), (dim, size), noise.dtype)
            miss = shared[:, None] - jnp.where(own < jnp.inf, own, 0) * standard
            return (own < jnp.inf) & (jnp.sum(miss**2, axis=0) <= leakage.tolerance**2)

        return squared_error(users, mean + published, root), [(jnp.int32(0), block_count(users, size), leaked)]


def _some(mechanism, noise):
    """`noise`, if there is any: of a single statistic nobody is leaked either way, and 0 has no derivative."""
    return jnp.where(noise == mechanism.no_privacy, 1, noise)


def _bounded_ratio(above: Float[Array, "*shape"], below: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """above / below for a chi-square variable to be compared with its square: held to what that can tell apart."""
    far = above >= FARTHEST * below
    ratio = jnp.where(far, FARTHEST, jnp.where(far, 1, above) / jnp.where(far, 1, below))
    return jnp.maximum(ratio, 2 * jnp.sqrt(jnp.finfo(ratio.dtype).tiny))  # its square has a derivative in every dtype
