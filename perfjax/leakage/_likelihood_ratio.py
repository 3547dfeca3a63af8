"""Leaked when a membership test on the release would find the user: log-likelihood ratio above a threshold."""

import functools
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import ndtr
from jaxtyping import Array, ArrayLike, Bool, Float

from perfjax import _check, count_privacy, theorems
from perfjax._check import Numbers
from perfjax._chi_square import lower_quantile, upper_quantile
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.leakage._pairs import SPLITS, AbstractLeakage, Split
from perfjax.mechanisms import GaussianMean, ShiftedLogCount
from perfjax.mechanisms._gaussian import CLIPPING_POINTS, quasi_normals
from perfjax.quadratic_forms import QuadraticForm

__all__ = ["LikelihoodRatioAbove", "across", "leak_probability_given_distance"]


class LikelihoodRatioAbove(AbstractLeakage):
    r"""A user is leaked when Lambda > tau, Lambda = log(density of the release with their record / without it).

    The release o with record z is the mean mu_z of all n records plus N(0, gamma^2 / n I). Without z its mean is
    mu_z - (z - mu_z) / (n - 1), and its noise, by `outside`,

    - "shared": still has variance gamma^2 / n (the paper);
    - "recomputed": has variance gamma^2 / (n - 1), that of a release by n - 1 users (the published simulations).

    The two agree for n >= 1000 and gamma <= 5 (0.173 against 0.175) and differ for few users or much noise
    (n = 100, gamma = 20, tau = 0.02, d = 12: 0.120 against 0.278).

    Of a count, every user is one of n, and without them it is n - 1: Lambda is the same for all, before clipping
    N(mu^2 / 2, mu^2) with mu as in `count_privacy.edge_mu`. Its noise does not depend on n: `outside` plays no role.

    Attributes:
        threshold: tau, in nats, above 0.
        outside: "shared" or "recomputed".

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 4.2, equation 8; "recomputed"
        is what its simulations do and its text does not say.
    """

    independent: ClassVar[bool] = False  # the records' residuals from their mean sum to zero

    threshold: Float[Array, "..."]
    outside: str = eqx.field(static=True)

    def __init__(self, threshold: Numbers, *, outside: str = "shared"):
        self.threshold = _check.in_range(
            _check.as_float(threshold, "threshold"), "threshold", 0, open_low=True, open_high=True
        )
        self.outside = _check.as_choice(outside, "outside", ("shared", "recomputed"))

    @property
    def copies(self) -> int:
        return 1

    def released_noise(self, noise: Float[Array, "..."]) -> Float[Array, "..."]:
        return noise

    def exposes(self, population: Float[Array, ""], noise_free: Bool[Array, ""]) -> Bool[Array, ""]:
        return noise_free | (population <= 1)


@SPLITS.enter(GaussianMean, LikelihoodRatioAbove)
def _gaussian_mean(mechanism, leakage, population, noise) -> Split:
    """P(Lambda > tau) over records and noise: equation 11, which is a one-dimensional integral in fact.

    Clipped records: an average over fixed points. Otherwise Lambda is a quadratic form in normals, for either meaning
    of `outside`. For the commonest case a mixture of normal distribution functions costs a third of the contour.
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
    above, below = QuadraticForm(linear, quadratic, jnp.zeros_like(linear), multiplicity).tails(level)
    return Split(leaked=above, kept=below)


@SPLITS.enter(ShiftedLogCount, LikelihoodRatioAbove)
def _count(mechanism, leakage, population, noise) -> Split:
    return Split(*count_privacy.leak_split(population, noise, mechanism.shift, leakage.threshold))


def _mixture(square, threshold, dim) -> Split:
    """E[Phi(m / 2 - tau / m)] with m^2 = square * chi2_dim: Lemma 7 averaged over the record's distance."""
    root, inverse_root, weight = (jnp.asarray(x, square.dtype) for x in _chi_rule(dim, str(square.dtype)))
    unit = jnp.sqrt(square)
    # Not ndtr: its two branches cost four times as much as erfc, which is as accurate in the tail. Not threshold / m:
    # one division per node is a tenth of the whole.
    x = (unit * math.sqrt(0.125)) * root - (threshold / unit * math.sqrt(0.5)) * inverse_root
    x = jnp.clip(x, -100, 100)  # beyond, Phi is constant and x^2 may overflow
    return Split(leaked=product(weight, jax.lax.erfc(-x)) / 2, kept=product(weight, jax.lax.erfc(x)) / 2)


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
        return Split(leaked=jnp.mean(ndtr(z)), kept=jnp.mean(ndtr(-z)))
    # The quadrature inside costs too much for every point: groups of neighbours share one.
    delta = (1 - 1 / population) * jnp.mean(jnp.sort(distance).reshape(-1, 16), axis=-1)
    leaked = jax.vmap(lambda s: _recomputed(s, noise, population, leakage.threshold, mechanism.dim))(delta)
    return Split(leaked=jnp.mean(leaked), kept=jnp.mean(1 - leaked))


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


def leak_probability_given_distance(
    distance: ArrayLike,
    noise_scale: ArrayLike,
    population: ArrayLike,
    *,
    threshold: ArrayLike,
    dim: int | None = None,
    outside: str = "shared",
) -> Float[Array, "..."]:
    r"""P(Lambda > tau) for a record at a known distance from the mean of all (clipped) records.

    "shared": Phi(m/2 - tau/m), m = sqrt(n) s / ((n - 1) gamma), whatever the dimension (Lemma 7). "recomputed": with
    u ~ N(0, 1) the noise along z - mu_z, b ~ chi2_{d-1} the rest, k = s / (gamma sqrt(n)) and
    e = (d/2) ln(n / (n-1)) + s^2 / (2 (n-1) gamma^2) - tau - b / (2n), leaked when u lies between
    -2e / (k + sqrt(k^2 + 2e/n)) and n (k + sqrt(k^2 + 2e/n)); never where k^2 + 2e/n <= 0.

    Args:
        distance: s = ||z - mu_z||, in units of the records, at least 0.
        noise_scale: gamma, in units of the records, at least 0.
        population: n, at least 0.
        threshold: tau, above 0.
        dim: d; needed for "recomputed".
        outside: as in `LikelihoodRatioAbove`.

    Returns:
        A probability; 1 for n <= 1 or without noise. "recomputed" is integrated over b up to the square root's kink,
        to 1e-10 in float64.

    Raises:
        ValueError: on values out of range, or without `dim` for "recomputed".

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", Lemma 7; "recomputed" is ours.
    """
    _check.as_choice(outside, "outside", ("shared", "recomputed"))
    if outside == "shared":
        return theorems.leak_probability_given_distance(distance, noise_scale, population, threshold=threshold)
    if dim is None:
        raise ValueError('Argument `dim` must be given with outside "recomputed".')
    dim = _check.as_count(dim, "dim", low=1)
    arguments = _check.one_dtype(
        (
            _check.in_range(_check.as_float(distance, "distance"), "distance", 0, open_high=True),
            _check.in_range(_check.as_float(noise_scale, "noise_scale"), "noise_scale", 0, open_high=True),
            _check.in_range(_check.as_float(population, "population"), "population", 0),
            _check.in_range(_check.as_float(threshold, "threshold"), "threshold", 0, open_low=True),
        )
    )

    def one(s, gamma, n, tau):
        exposed = (n <= 1) | (gamma == 0)
        p = _recomputed(s, jnp.where(gamma == 0, 1, gamma), jnp.where(n > 1, n, 2), tau, dim)
        return jnp.where(exposed, 1, p)

    return jnp.vectorize(one)(*arguments)


def _recomputed(distance, noise, population, threshold, dim):
    """P(Lambda > tau | distance) with the likelihood ratio recomputed, for n > 1 and noise above 0."""
    n = population
    k = distance / (noise * jnp.sqrt(n))
    # k^2 + 2e/n, which is where the square root of the docstring above begins, is (n k)^2 (1 + 1/(n-1)) less b.
    gain = dim / 2 * jnp.log1p(1 / (n - 1)) + k * k * n / (2 * (n - 1)) - threshold
    limit = n * n * k * k + 2 * n * gain
    rest, weight = across(limit, dim)
    e = gain - rest / (2 * n)
    square = k * k + 2 * e / n
    root = square_root(square)
    reach = jnp.where(square > 0, k + root, 1)
    inside = ndtr(jnp.clip(n * reach, -100, 100)) - ndtr(jnp.clip(-2 * e / reach, -100, 100))
    return jnp.sum(jnp.where(square > 0, weight * inside, 0))


def across(limit, dim):
    """Nodes and weights for expectations over chi2_{dim-1} restricted to values below `limit`.

    b = low + width sin^2(angle): the density's b^((dim-1)/2 - 1) at 0 and the square root at the limit both become
    smooth, and Gauss-Legendre takes the most nodes where chi2_{dim-1} is narrowest: 1e-10 at dim = 300 in float64.
    """
    if dim == 1:
        return jnp.zeros_like(limit)[None], jnp.where(limit > 0, 1, 0).astype(limit.dtype)[None]
    unit, step, low, high, log_norm = _across_rule(dim, str(limit.dtype))
    width = jnp.clip(limit, low, high) - low
    value = low + width * jnp.asarray(unit, limit.dtype)
    positive = jnp.maximum(value, jnp.finfo(limit.dtype).tiny)
    log_density = ((dim - 1) / 2 - 1) * jnp.log(positive) - positive / 2 - log_norm
    return value, width * jnp.asarray(step, limit.dtype) * jnp.exp(log_density)


@functools.cache
def _across_rule(dim: int, dtype: str):
    outside, few, many = (1e-16, 32, 48) if dtype == "float64" else (1e-8, 24, 32)
    ends = lower_quantile(outside, dim - 1), upper_quantile(outside, dim - 1)
    low, high = (ends[0] if dim > 20 else 0.0), ends[1]
    node, weight = np.polynomial.legendre.leggauss(few if dim <= 12 else many)
    angle = (node + 1) * np.pi / 4
    log_norm = (dim - 1) / 2 * np.log(2) + scipy.special.gammaln((dim - 1) / 2)
    return np.sin(angle) ** 2, weight * np.pi / 4 * np.sin(2 * angle), float(low), float(high), float(log_norm)
