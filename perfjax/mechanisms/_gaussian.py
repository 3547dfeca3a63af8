"""The Gaussian mechanism for a mean: clipped records, averaged, plus Gaussian noise."""

import functools
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check, accounting
from perfjax._check import Numbers
from perfjax._linear import product
from perfjax.mechanisms._base import AbstractMechanism
from perfjax.privacy import GaussianBudget, Privacy

__all__ = ["GaussianMean"]

NEVER_CLIPS = 1e-9  # P(||z|| > R) below which clipping is left out of the computation
CLIPPING_POINTS = 8192  # fixed low-discrepancy points for expectations over clipped records


class ClippedMoments(NamedTuple):
    """First two moments of a clipped record: its bias, its covariance, and both in units of Sigma."""

    bias: Float[Array, " dim"]
    covariance: Float[Array, "dim dim"]
    squared_bias: Float[Array, ""]
    scatter: Float[Array, ""]


class GaussianMean(AbstractMechanism):
    r"""The mean of n records z ~ N(mu, Sigma), each clipped to norm R, plus noise N(0, gamma^2 / n I).

    As if every user added N(0, gamma^2 I) to their own clipped record. The error is the expected squared Mahalanobis
    distance to the true mean,

        (gamma^2 tr(Sigma^-1) + tr(Sigma^-1 Cov(clipped z))) / n + ||E[clipped z] - mu||^2_{Sigma^-1},

    whose middle term is d and whose last is 0 without clipping. With clipping both are averages over 8192 fixed
    low-discrepancy points (within 1e-3 relative).

    Attributes:
        noise_scale: gamma, in units of the records, at least 0; 0 means no privacy. One value, or one per release.
        dim: d, the number of features.
        clip_radius: R, in units of the records, above 0; None means no clipping (and no differential privacy).
        mean: mu, one number for all features or one per feature.
        covariance: Sigma, a number (times the identity), one variance per feature, or a matrix.
        clips: whether clipping is computed. It is left out where P(||z|| > R) < 1e-9; R then still sets the budget.

    Source: "Performative Privacy: When Differential Privacy Maximizes Utility", section 4.1, equations 6 and 7 (Lemma
        3). The clipping terms, which the paper neglects, are ours.
    """

    noise_name: ClassVar[str] = "noise_scale"
    noise_symbol: ClassVar[str] = "γ"
    noise_unit: ClassVar[str] = "units of the records"
    noise_label: ClassVar[str] = "noise_scale"
    noise_bounds: ClassVar[tuple[float, float]] = (1e-3, 1e3)
    no_privacy: ClassVar[float] = 0.0
    more_is_private: ClassVar[bool] = True
    error_unit: ClassVar[str] = "squared error"
    meaning: ClassVar[Mapping[str, tuple[str, str]]] = {
        "clip_radius": ("R", "units of the records"),
        "mean": ("μ", "units of the records"),
        "covariance": ("Σ", "squared units of the records"),
    }

    noise_scale: Float[Array, "..."]
    clip_radius: Float[Array, ""] | None
    mean: Float[Array, "..."]
    covariance: Float[Array, "..."]
    dim: int = eqx.field(static=True)
    clips: bool = eqx.field(static=True)

    def __init__(
        self,
        noise_scale: Numbers,
        *,
        dim: int,
        clip_radius: Numbers | None = None,
        mean: Numbers = 0.0,
        covariance: Numbers = 1.0,
    ):
        self.dim = _check.as_count(dim, "dim", low=1)
        leaves = (
            self.check_noise(noise_scale),
            None if clip_radius is None else _check_radius(clip_radius),
            _check_mean(mean, self.dim),
            _check_covariance(covariance, self.dim),
        )
        self.noise_scale, self.clip_radius, self.mean, self.covariance = _check.one_dtype(leaves)
        self.clips = _clips(self.clip_radius, self.mean, self.covariance, self.dim)

    @classmethod
    def from_budget(
        cls,
        *,
        clip_radius: ArrayLike,
        dim: int,
        rho: Numbers | None = None,
        epsilon: ArrayLike | None = None,
        delta: ArrayLike | None = None,
        scope: str = "local",
        population: Numbers | None = None,
        mean: Numbers = 0.0,
        covariance: Numbers = 1.0,
    ) -> "GaussianMean":
        """The mechanism with the least noise that meets a budget per release, for one record replaced by another.

        Args:
            clip_radius: R, above 0.
            dim: d.
            rho: zCDP budget, above 0; or instead
            epsilon: with `delta`, the (epsilon, delta) budget, met exactly.
            delta: in [0, 1], above 0 where `epsilon` is finite: no noise is enough for 0.
            scope: "local" protects a user's noisy record, rho = 2 R^2 / gamma^2; "central" the release alone,
                rho = 2 R^2 / (n gamma^2), and then needs
            population: n, the users of the release.
            mean: mu, as in the class.
            covariance: Sigma, as in the class.

        Raises:
            ValueError: unless exactly one of `rho` and (`epsilon`, `delta`) is given, or on values out of range.
        """
        if (rho is None) == (epsilon is None) or (epsilon is None) != (delta is None):
            raise ValueError("Give either `rho`, or `epsilon` together with `delta`.")
        _check.as_choice(scope, "scope", ("local", "central"))
        if (scope == "central") == (population is None):
            raise ValueError('Argument `population` must be given with scope "central", and only then.')
        if rho is None:
            assert epsilon is not None
            assert delta is not None
            mu = accounting.gaussian_mu(epsilon=epsilon, delta=delta)
            if _check.is_known(mu) and np.any(np.asarray(mu) == 0):
                raise _check.fail("delta", "be above 0 where `epsilon` is finite", delta)
        else:
            mu = accounting.mu_from_rho(_check.in_range(_check.as_float(rho, "rho"), "rho", 0, open_low=True))
        sensitivity = accounting.clipped_sensitivity(clip_radius=clip_radius, adjacency="replace-one")
        scale = accounting.noise_from_mu(mu=mu, sensitivity=sensitivity)
        if population is not None:
            scale = scale / jnp.sqrt(_check.in_range(_check.as_float(population, "population"), "population", 1))
        return cls(scale, dim=dim, clip_radius=clip_radius, mean=mean, covariance=covariance)

    @property
    def noise(self) -> Float[Array, "..."]:
        return self.noise_scale

    def check_noise(self, noise: Numbers) -> Float[Array, "..."]:
        return _check.in_range(_check.as_float(noise, "noise_scale"), "noise_scale", 0, open_high=True)

    def error(self, population: Numbers, noise: Numbers | None = None) -> Float[Array, ""]:
        population, noise = self.typed(population, noise)
        scatter, squared_bias = jnp.asarray(self.dim, self.mean.dtype), jnp.zeros_like(noise)
        if self.clips:
            moments = self.clipped_moments()
            scatter, squared_bias = moments.scatter, moments.squared_bias
        total = noise**2 * self.precision_trace() + scatter
        present = (population > 0) & (population < jnp.inf)
        variance = jnp.where(present, total / jnp.where(present, population, 1), 0)
        return jnp.where(population > 0, variance + squared_bias, jnp.inf)

    def privacy(self, population: Numbers, noise: Numbers | None = None) -> Privacy:
        population, noise = self.typed(population, noise)
        if self.clip_radius is None:
            unbounded = jnp.full(jnp.broadcast_shapes(noise.shape, population.shape), jnp.inf, noise.dtype)
            return Privacy(local=GaussianBudget(unbounded), central=GaussianBudget(unbounded))
        sensitivity = accounting.clipped_sensitivity(clip_radius=self.clip_radius, adjacency="replace-one")
        local = accounting.mu_from_noise(noise_std=noise + jnp.zeros_like(population), sensitivity=sensitivity)
        # An expected population may be less than a user; what is published says no more of anybody than their record.
        central = local / jnp.sqrt(jnp.maximum(population, 1))
        return Privacy(local=GaussianBudget(local), central=GaussianBudget(central))

    def eigenvalues(self) -> tuple[Float[Array, " terms"], tuple[int, ...]]:
        """The distinct terms of Sigma's spectrum, and how many dimensions share each."""
        if self.covariance.ndim == 0:
            return self.covariance[None], (self.dim,)
        values = self.covariance if self.covariance.ndim == 1 else jnp.linalg.eigvalsh(self.covariance)
        return values, (1,) * self.dim

    def precision_trace(self) -> Float[Array, ""]:
        """tr(Sigma^-1)."""
        values, multiplicity = self.eigenvalues()
        return jnp.sum(jnp.asarray(multiplicity, values.dtype) / values)

    def least_unclipped_radius(self) -> float | None:
        """The least clip radius at which P(||z|| > R) < 1e-9; None where mean or covariance is traced."""
        if not _check.is_known(self.mean, self.covariance):
            return None
        return _least_radius(self.mean, self.covariance, self.dim)

    def clipped_records(self, normals: np.ndarray) -> Float[Array, "points dim"]:
        """Clipped records made from standard normals."""
        records = self.mean + _colour(self.covariance, jnp.asarray(normals, self.mean.dtype))
        norm = jnp.linalg.norm(records, axis=-1, keepdims=True)
        assert self.clip_radius is not None
        outside = norm > self.clip_radius
        return jnp.where(outside, records * (self.clip_radius / jnp.where(outside, norm, 1)), records)

    def clipped_moments(self) -> ClippedMoments:
        """Moments of a clipped record, by fixed points with unclipped records as control variates."""
        normals = quasi_normals(self.dim, CLIPPING_POINTS)
        clipped = self.clipped_records(normals)
        white = _whiten(self.covariance, clipped - self.mean)
        white_bias = jnp.mean(white - jnp.asarray(normals, white.dtype), axis=0)
        spread = jnp.sum((white - white_bias) ** 2, axis=-1) - jnp.asarray(np.sum(normals**2, axis=-1), white.dtype)
        center = jnp.mean(clipped, axis=0)
        deviation = clipped - center
        return ClippedMoments(
            bias=_colour(self.covariance, white_bias),
            covariance=product(deviation.T, deviation) / len(normals),
            squared_bias=jnp.sum(white_bias**2),
            scatter=self.dim + jnp.mean(spread),
        )


@functools.cache
def quasi_normals(dim: int, points: int) -> np.ndarray:
    """`points` low-discrepancy standard normals in `dim` dimensions, mirrored so that odd moments vanish exactly."""
    from scipy.stats import qmc  # here, since it takes most of a second to import and few scenarios clip

    sobol = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(0))
    half = scipy.special.ndtri(sobol.random(points // 2))
    return np.concatenate([half, -half])


def _check_radius(clip_radius):
    radius = _check.in_range(
        _check.as_float(clip_radius, "clip_radius"), "clip_radius", 0, open_low=True, open_high=True
    )
    if radius.ndim:
        raise _check.fail("clip_radius", "be one number", clip_radius)
    return radius


def _check_mean(mean, dim):
    mean = _check.in_range(_check.as_float(mean, "mean"), "mean", open_low=True, open_high=True)
    if mean.shape not in ((), (dim,)):
        raise _check.fail("mean", f"be one number or {dim} of them (`dim`)", f"of shape {mean.shape}")
    return mean


def _check_covariance(covariance, dim):
    covariance = _check.as_float(covariance, "covariance")
    if covariance.shape not in ((), (dim,), (dim, dim)):
        requirement = f"be one number, {dim} variances or a {dim} x {dim} matrix (`dim`)"
        raise _check.fail("covariance", requirement, f"of shape {covariance.shape}")
    if covariance.ndim < 2:
        return _check.in_range(covariance, "covariance", 0, open_low=True, open_high=True)
    if _check.is_known(covariance):
        matrix = np.asarray(covariance, float)
        if not np.allclose(matrix, matrix.T, rtol=1e-6):
            raise _check.fail("covariance", "be symmetric", covariance)
        least = np.linalg.eigvalsh(matrix)[0] if np.all(np.isfinite(matrix)) else math.nan
        if not least > 0:
            raise _check.fail("covariance", "be positive definite", f"a matrix with least eigenvalue {least:g}")
    return covariance


def _clips(clip_radius, mean, covariance, dim) -> bool:
    """Whether clipping must be computed: unless it is known to bind with probability below `NEVER_CLIPS`."""
    if clip_radius is None:
        return False
    if not _check.is_known(clip_radius, mean, covariance):
        return True
    largest, distance = _extent(mean, covariance, dim)
    # ||z|| <= ||mu|| + sqrt(largest) chi_d: a bound, so that clipping is never left out where it binds more often.
    room = max(float(clip_radius) - distance, 0.0)
    return bool(scipy.special.gammaincc(dim / 2, room**2 / largest / 2) >= NEVER_CLIPS)


def _least_radius(mean, covariance, dim) -> float:
    """The radius from which on `_clips` leaves clipping out."""
    largest, distance = _extent(mean, covariance, dim)
    return float(distance + np.sqrt(2 * largest * scipy.special.gammainccinv(dim / 2, NEVER_CLIPS)))


def _extent(mean, covariance, dim) -> tuple[np.floating, np.floating]:
    """The largest variance along any direction, and how far the mean lies from 0."""
    covariance = np.asarray(covariance, float)
    largest = np.max(covariance if covariance.ndim < 2 else np.linalg.eigvalsh(covariance))
    return largest, np.linalg.norm(np.broadcast_to(np.asarray(mean, float), dim))


def _colour(covariance, normals):
    """Standard normals (last axis: features) turned into N(0, Sigma)."""
    if covariance.ndim < 2:
        return jnp.sqrt(covariance) * normals
    return product(normals, jnp.linalg.cholesky(covariance).T)


def _whiten(covariance, deviations):
    """The inverse of `_colour`."""
    if covariance.ndim < 2:
        return deviations / jnp.sqrt(covariance)
    factor = jnp.linalg.cholesky(covariance)
    return jax.scipy.linalg.solve_triangular(factor, deviations.T, lower=True).T
