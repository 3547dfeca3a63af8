"""What is alike in all pairs of a Gaussian mean: what users share, the error that is made, records in blocks."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from perfjax import _check
from perfjax._draws import chi_square_from_bits, normal_from_bits
from perfjax._normals import normals
from perfjax.leakage._base import AbstractLeakage
from perfjax.leakage.pairs._base import AbstractPair, Gap
from perfjax.leakage.pairs._chi_square_noise import at_score
from perfjax.leakage.pairs._leaks import leak_distribution, leaked_count
from perfjax.leakage.pairs.blocks import Keys, block_count, present
from perfjax.mechanisms import GaussianMean

__all__ = ["AbstractGaussianMeanPair", "drawn_records", "squared_error"]

KEPT_NUMBERS = 2**18  # numbers of a release that are kept; those beyond are drawn a second time when they are needed


class AbstractGaussianMeanPair(AbstractPair):
    """A pair of a Gaussian mean: users share its noise, as the squared length in units of its variance, chi2_d."""

    def copies(self, leakage: AbstractLeakage) -> Float[Array, ""] | int:
        """Of the mean that a round publishes, all of them seen by whom the rule is about."""
        return 1

    def shared_quantile(self, mechanism, leakage, score):
        return at_score(score, mechanism.dim)

    def count_gap(self, mechanism, leakage):
        """Clipping that binds, or a covariance that is not one number."""
        if mechanism.clips:
            return Gap("clipping that binds", _unclipped(mechanism))
        if mechanism.covariance.ndim:
            return Gap("a covariance that is not one number", "give `covariance` one number")
        return None

    def count_release(self, mechanism, leakage, population, noise, words):
        released = self.released_noise(mechanism, leakage, noise)
        shared, error = _shared_and_error(mechanism, population, released, self.copies(leakage), words[:3])
        leaks = leak_distribution(mechanism, leakage, population, noise, shared)
        return leaked_count(population, leaks, words[3], independent=self.independent), error

    def record_size(self, mechanism):
        return mechanism.dim


def _unclipped(mechanism):
    """The nearest mechanism that clips nobody, in words."""
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


def _shared_and_error(
    mechanism: GaussianMean,
    population: Float[Array, ""],
    noise: Float[Array, ""],
    copies: Float[Array, ""] | int,
    words: UInt32[Array, " 3"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """What users share, and the realised squared error of the one copy of the mean, each with `noise`, that counts.

    The records' mean is independent of their residuals, and so of the leaks, given the noise that users share: the
    average over the copies, about which the one that is published varies too.
    """
    n, v = population, mechanism.covariance
    along, across = (
        chi_square_from_bits(word, k, n.dtype)
        for word, k in zip(words[:2], (mechanism.dim, mechanism.dim - 1), strict=True)
    )
    rest = v + noise**2 * (1 - 1 / copies)
    distance = (noise * jnp.sqrt(along / copies) + jnp.sqrt(rest) * normal_from_bits(words[2], n.dtype)) ** 2
    distance = distance + rest * across
    return along, jnp.where(n > 0, distance / (v * jnp.where(n > 0, n, 1)), jnp.inf)


def drawn_records(
    mechanism: GaussianMean, users: Int[Array, ""], n: Float[Array, ""], size: int, keys: Keys
) -> tuple[Callable, Float[Array, "..."], Float[Array, " dim"], Float[Array, "blocks dim size"]]:
    """How a block of records is drawn, a root of their covariance, the mean of all, and the first blocks of them."""
    dtype = n.dtype
    root = jnp.linalg.cholesky(mechanism.covariance) if mechanism.covariance.ndim == 2 else mechanism.covariance**0.5

    def draw(block):
        return _records(mechanism, root, jax.random.fold_in(keys.records, block), size)

    total, store = _sum_of_blocks(draw, users, (mechanism.dim, size), dtype)
    return draw, root, total / n, store


def squared_error(users: Int[Array, ""], miss: Float[Array, " dim"], root: Float[Array, "..."]) -> Float[Array, ""]:
    """The squared Mahalanobis length of what a release missed the true mean by."""
    white = jax.scipy.linalg.solve_triangular(root, miss, lower=True) if root.ndim == 2 else miss / root
    return jnp.where(users > 0, jnp.sum(white**2), jnp.inf)


def _records(mechanism, root, key, size) -> Float[Array, "dim block"]:
    """Clipped records of a block of users, less mu: without clipping mu drops out, and costs no digits."""
    # Users along the last axis: what is done to all of them fills a processor's vectors, a dozen features do not.
    standard = normals(key, (mechanism.dim, size), root.dtype)
    if root.ndim == 2:
        deviations = jnp.matmul(root, standard, precision="highest")
    else:
        deviations = jnp.broadcast_to(root, mechanism.dim)[:, None] * standard
    if not mechanism.clips:
        return deviations
    mu = jnp.broadcast_to(mechanism.mean, mechanism.dim)[:, None]
    records = mu + deviations
    norm = jnp.sqrt(jnp.sum(records**2, axis=0))
    return records * jnp.minimum(1, mechanism.clip_radius / norm) - mu


def _sum_of_blocks(draw, users, shape, dtype):
    """The sum of all users' records, and the first blocks of them, before a slot that holds none of these."""
    dim, size = shape
    kept = max(1, KEPT_NUMBERS // (size * dim))

    def add(block, state):
        total, store = state
        records = draw(block)
        # A conditional write copies the store each time; the last slot takes what is not kept instead.
        store = jax.lax.dynamic_update_index_in_dim(store, records, jnp.minimum(block, kept), 0)
        return total + jnp.sum(jnp.where(present(users, block, size), records, 0), axis=1), store

    start = jnp.zeros(dim, dtype), jnp.zeros((kept + 1, *shape), dtype)
    return jax.lax.fori_loop(jnp.int32(0), block_count(users, size), add, start)
