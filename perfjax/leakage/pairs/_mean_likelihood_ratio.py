"""A Gaussian mean and a membership test: leaked when the likelihood ratio of the release is above a threshold."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from perfjax import theorems
from perfjax._chi_square import lower_quantile, upper_quantile
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.leakage._likelihood_ratio import LikelihoodRatioAbove
from perfjax.leakage.pairs._across import across, below, density
from perfjax.leakage.pairs._base import CriticalNoise, LeakDistribution, Split
from perfjax.leakage.pairs._chi_square_noise import Step, around, chi_square_rule
from perfjax.leakage.pairs._gaussian_mean import AbstractGaussianMeanPair, drawn_records, squared_error
from perfjax.leakage.pairs._given_distance import given_distance_recomputed
from perfjax.leakage.pairs.blocks import Test, block_count
from perfjax.mechanisms import GaussianMean
from perfjax.mechanisms._gaussian import CLIPPING_POINTS, quasi_normals
from perfjax.quadratic_forms import QuadraticForm

__all__ = ["GaussianMeanLikelihoodRatio"]


class GaussianMeanLikelihoodRatio(AbstractGaussianMeanPair, mechanism=GaussianMean, leakage=LikelihoodRatioAbove):
    """Users share the noise vector eta, as ||eta||^2 in units of its variance in each of d coordinates, chi2_d.

    Given it the leaked count fluctuates *less* than a binomial, because the records' residuals from their mean sum to
    zero. A single user is leaked whatever the noise: the likelihood ratio is undefined.
    """

    def exposed(self, mechanism, leakage, population, noise):
        return (noise == mechanism.no_privacy) | (population <= 1)

    def split(self, mechanism, leakage, population, noise):
        """P(Lambda > tau) over records and noise: equation 11, which is a one-dimensional integral in fact.

        Clipped records: an average over fixed points. Otherwise Lambda is a quadratic form in normals, for either
        meaning of `outside`. For the commonest case a mixture of normal distribution functions costs a third of the
        contour.
        """
        if mechanism.clips:
            return _clipped(mechanism, leakage, population, noise)
        eigenvalues, multiplicity = mechanism.eigenvalues()
        if leakage.outside == "shared":
            linear = quadratic = eigenvalues / ((population - 1) * noise**2)
            level = leakage.threshold
            if len(multiplicity) == 1 and mechanism.dim >= 4:
                return _mixture(linear[0], level, mechanism.dim)
        else:
            quadratic = eigenvalues / (population * noise**2)
            linear = quadratic - 1 / population
            level = leakage.threshold - mechanism.dim / 2 * jnp.log1p(1 / (population - 1))
        leaked, spared = QuadraticForm(linear, quadratic, jnp.zeros_like(linear), multiplicity).tails(level)
        return Split(leaked, spared)

    def shared_noise(self, mechanism, leakage, population, noise):
        """The leak probability has a step, at most, if the ratio is "recomputed"."""
        n, d = population, mechanism.dim
        if leakage.outside == "shared":
            node, weight = chi_square_rule(d)
            return jnp.asarray(node, noise.dtype), jnp.asarray(weight, noise.dtype)
        gap = leakage.threshold - d / 2 * jnp.log1p(1 / (n - 1))
        change = jnp.maximum(noise**2 / mechanism.covariance, 1e-12)  # below, all is as if it were so
        start, middle = -2 * gap, d / change - 2 * n * gap
        return around(Step.of_noncentral(start, middle, change, change * (n - 1), d), d)

    def leaks(self, mechanism, leakage, population, noise, shared):
        """By one quadrature over the part b ~ chi2_{d-1} of the residual across the noise; exact but for `spread`.

        In units of the residual's standard deviation, with a ~ N(0, 1) its part along the noise and
        H = (n - 1) ||eta||: leaked <=> a^2 + 2 a H + b > c. Given b, a user is *spared* for a between two roots, and
        only for b below H^2 + c. Var(K) / n = p (1 - p) - E[1{leaked} a]^2 but for terms of order 1 / n: residuals are
        correlated by -1 / (n - 1), and all but the first Hermite coefficient of 1{leaked} are left out.
        """
        n, v = population, mechanism.covariance
        shift = jnp.sqrt(shared * (n - 1) / v) * noise
        level = 2 * leakage.threshold * noise**2 * (n - 1) / v
        if leakage.outside == "recomputed":
            gap = leakage.threshold - mechanism.dim / 2 * jnp.log1p(1 / (n - 1))
            level = noise**2 * (2 * n * gap + shared) / v
        limit = shift**2 + level

        def spared_between(rest):
            root = jnp.sqrt(jnp.maximum(limit - rest, jnp.finfo(limit.dtype).tiny))
            return -(shift + root), (level - rest) / (shift + root)

        rest, weight = across(limit, mechanism.dim)
        low, high = spared_between(rest)
        spared = jnp.maximum(product(weight, below(high) - below(low)), 0)
        pull = product(weight, density(high) - density(low))
        leaked = 1 - spared
        # With two users the residuals are opposite: both are spared for |a| below the upper root, which is positive for
        # b below `level` only. That is a rule of its own: with the one above, the kink at `level` costs 3e-3.
        rest, weight = across(level, mechanism.dim)
        _, high = spared_between(rest)
        neither = product(weight, 2 * below(high) - 1)
        both = jnp.clip(1 - 2 * spared + neither, 0, 1)
        return LeakDistribution(leaked, spared, jnp.maximum(leaked * spared - pull**2, 0), both)

    def user_release(self, mechanism, leakage, users, noise, size, keys):
        n, dim = jnp.maximum(users, 1).astype(noise.dtype), mechanism.dim
        draw, root, mean, store = drawn_records(mechanism, users, n, size, keys)
        direction = jax.random.normal(keys.once, (dim,), noise.dtype) / jnp.sqrt(n)
        error = squared_error(users, mean + noise * direction, root)
        # Two loops, not one with a condition in it: that would copy all that is stored for every block.
        blocks = block_count(users, size)
        stored = jnp.minimum(blocks, store.shape[0] - 1)
        sources = ((jnp.int32(0), stored, lambda block: store[block]), (stored, blocks, draw))
        tests = [(a, b, _membership_test(leakage, n, noise, direction, mean, records)) for a, b, records in sources]
        return error, tests

    def critical_noise(self, mechanism, leakage, *, leave, recruit, population):
        radius = jnp.inf if mechanism.clip_radius is None else mechanism.clip_radius
        value = theorems.critical_noise_scale(
            leave, recruit, leakage.threshold, clip_radius=radius, population=population
        )
        return CriticalNoise(value, "Theorem 2", leakage.outside == "shared")


def _mixture(square, threshold, dim) -> Split:
    """E[Phi(m / 2 - tau / m)] with m^2 = square * chi2_dim: Lemma 7 averaged over the record's distance."""
    root, inverse_root, weight = (jnp.asarray(x, square.dtype) for x in _chi_rule(dim, str(square.dtype)))
    unit = jnp.sqrt(square)
    # Not ndtr: its two branches cost four times as much as erfc, which is as accurate in the tail. Not threshold / m:
    # one division per node is a tenth of the whole.
    x = (unit * math.sqrt(0.125)) * root - (threshold / unit * math.sqrt(0.5)) * inverse_root
    x = jnp.clip(x, -100, 100)  # beyond, Phi is constant and x^2 may overflow
    return Split(leaked=product(weight, jax.lax.erfc(-x)) / 2, spared=product(weight, jax.lax.erfc(x)) / 2)


@functools.cache
def _chi_rule(dim: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes, their inverses and weights for expectations over chi_dim, dim >= 4: the trapezoid rule in chi^(1/3).

    In that variable the density is nearly normal, so that few nodes do: 16 for 1e-5, 48 for 1e-11, which are also whole
    vectors for a processor (21 nodes in log chi took twice the time, and were no better).
    """
    count, low, high = (48, 1e-17, 1e-22) if dtype == "float64" else (16, 1e-8, 1e-9)
    y = np.linspace(lower_quantile(low, dim) ** (1 / 6), upper_quantile(high, dim) ** (1 / 6), count)
    log_density = (3 * dim - 1) * np.log(y) - y**6 / 2
    weight = np.exp(log_density - np.max(log_density))
    return y**3, y**-3, weight / weight.sum()


def _clipped(mechanism, leakage, population, noise) -> Split:
    """The average of P(Lambda > tau | distance) over fixed clipped records and means of the others."""
    distance = _clipped_distances(mechanism, population)
    if leakage.outside == "shared":
        m = jnp.maximum(distance / (jnp.sqrt(population) * noise), jnp.finfo(distance.dtype).tiny)
        z = jnp.clip(m / 2 - leakage.threshold / m, -100, 100)
        return Split(leaked=jnp.mean(ndtr(z)), spared=jnp.mean(ndtr(-z)))
    # The quadrature inside costs too much for every point: groups of neighbours share one.
    delta = (1 - 1 / population) * jnp.mean(jnp.sort(distance).reshape(-1, 16), axis=-1)
    leaked = jax.vmap(lambda s: given_distance_recomputed(s, noise, population, leakage.threshold, mechanism.dim))(
        delta
    )
    return Split(leaked=jnp.mean(leaked), spared=jnp.mean(1 - leaked))


def _clipped_distances(mechanism, population):
    """Distances of a clipped record from the mean of the n - 1 others, at fixed points.

    One of the others is a clipped record itself, the rest are summed up by a normal: exact for two users, and the
    normal's error is already small when the first is gone.
    """
    own, other, rest = np.split(quasi_normals(3 * mechanism.dim, CLIPPING_POINTS), 3, axis=-1)
    moments = mechanism.clipped_moments()
    center = mechanism.mean + moments.bias
    factor = jnp.linalg.cholesky(moments.covariance)
    crowd = jnp.maximum(population - 2, 0)
    spread = square_root(crowd)
    sum_of_rest = crowd * center + spread * product(jnp.asarray(rest, center.dtype), factor.T)
    others = (mechanism.clipped_records(other) + sum_of_rest) / (1 + crowd)
    gap = mechanism.clipped_records(own) - others
    return jnp.sqrt(jnp.sum(gap**2, axis=-1) + jnp.finfo(gap.dtype).tiny)


def _membership_test(leakage, n, noise, direction, mean, records) -> Test:
    """Who of a block is leaked by the release `mean` + `noise` * `direction`."""
    exposed = (n <= 1) | (noise == 0)
    scale, others = jnp.where(noise == 0, 1, noise), jnp.maximum(n - 1, 1)

    def leaked(block):
        # With e = o - z_bar, the noise, o - (mean without z) = e + (z - z_bar) / (n - 1). The difference of the squares
        # of the two is gamma sqrt(n) times smaller than either: it is written out, for subtracting would lose it.
        deviation = (records(block) - mean[:, None]) / scale
        nearer = jnp.sum(deviation * (2 * direction[:, None] + deviation / others), axis=0)
        if leakage.outside == "shared":
            ratio = n / others * nearer / 2
        else:
            ratio = (direction.size * jnp.log1p(1 / others) + nearer - jnp.sum(direction**2)) / 2
        return exposed | (ratio > leakage.threshold)

    return leaked
