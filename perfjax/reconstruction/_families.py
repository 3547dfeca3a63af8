"""Families of releases about a fixed set of records: moments, smooth threshold counts, and any other mean of features.

Release l is the mean over the m records of a feature, q_l = (1/m) Σ_k φ_l(z_k), with noise of variance
κ (w_l/m)²: w_l is m times the sensitivity (how far one record can move the sum). The number of records cancels
in the whitened Jacobian, whose rows are φ_l'(z_k)/w_l at κ = 1.

Arrays end in the axes (length, m): one row per release, of which those beyond the number of releases are zero.
`length` fixes the shape, so that the number of releases itself may be an array, batched or traced.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers, as_choice, as_float, as_kind, fail, in_range, is_known
from perfjax._linear import product
from perfjax.reconstruction._inverses import left_inverse
from perfjax.reconstruction._steps import AbstractStep

__all__ = ["AbstractFamily", "FeatureMeans", "Moments", "Thresholds"]

SENSITIVITIES = ("exact", "paper")
GRIDS = ("midpoint", "interior", "endpoint")
_NODES = 16  # Gauss-Legendre, per piece
_GRID = 2001  # points of a search over one record


def _radius(value: ArrayLike) -> Float[Array, "..."]:
    return in_range(as_float(value, "radius"), "radius", 0.0, open_low=True, open_high=True)


def _sensitivity(value: str) -> str:
    return as_choice(value, "sensitivity", SENSITIVITIES)


class AbstractFamily(eqx.Module):
    """Releases of which any number can be made about the same records in [-radius, radius]."""

    radius: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def features(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """φ_l(z_k)."""

    @abc.abstractmethod
    def slopes(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """φ_l'(z_k)."""

    @abc.abstractmethod
    def widths(self, releases: ArrayLike, length: int) -> Float[Array, "... l"]:
        """w_l: m times the sensitivity of release l that the noise is calibrated to (replace-one)."""

    @abc.abstractmethod
    def joint_sensitivity(self, releases: ArrayLike, length: int) -> Float[Array, "..."]:
        """The most that replacing one record moves the transcript, Σ_l (change/sensitivity)²: at most `releases`."""

    @abc.abstractmethod
    def lower_limit(
        self, records: Float[Array, "... m"], releases: ArrayLike, length: int, kappa: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """What the bound on the multiset cannot fall below at `releases` or more; `kappa` belongs to `releases`.

        It relies on κ_L, for thresholds κ_L/L, not falling with L. 0 where nothing is known.
        """

    def rows(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """The Jacobian of the transcript in units of its noise at κ = 1, a zero row for what is not released."""
        made = made_releases(releases, length)
        widths = jnp.where(made, self.widths(releases, length), 1)
        slopes = self.slopes(records, releases, length)
        return jnp.where(made[..., None], slopes / widths[..., None], 0)


def made_releases(releases, length):
    """Which of `length` rows are releases."""
    count = jnp.asarray(releases)[..., None]
    return jnp.arange(1, length + 1).astype(count.dtype) <= count


class Moments(AbstractFamily):
    """The first L moments of the records in units of the radius, q_l = (1/m) Σ_k (z_k/R)^l.

    Attributes:
        radius: R > 0; the records lie in [-R, R].
        sensitivity: "exact", 2/m for odd l and 1/m for even l; or "paper", 2/m for all.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-B and Table I, whose
        sensitivity of even moments is twice the exact one.
    """

    radius: Float[Array, ""] = eqx.field(converter=_radius)
    sensitivity: str = eqx.field(converter=_sensitivity, static=True, default="exact")

    def features(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """r^l, r = z/R."""
        return self._powers(records, length) * (records / self.radius)[..., None, :]

    def slopes(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """l r^(l-1)/R."""
        order = jnp.arange(1, length + 1).astype(records.dtype)[:, None]
        return order / self.radius * self._powers(records, length)

    def widths(self, releases: ArrayLike, length: int) -> Float[Array, "... l"]:
        """2 for odd l; 1 or, as in the paper, 2 for even l."""
        even = jnp.arange(1, length + 1) % 2 == 0
        return jnp.where(even & (self.sensitivity == "exact"), 1, 2).astype(self.radius.dtype)

    def joint_sensitivity(self, releases: ArrayLike, length: int) -> Float[Array, "..."]:
        """ceil(L/2) under the paper's sensitivities, by the swap of -R and R; found by search under the exact ones."""
        releases = jnp.asarray(releases, self.radius.dtype)
        if self.sensitivity == "paper":
            return jnp.ceil(releases / 2)
        # The best swap has one record at an end: by symmetry R, and the other somewhere in [-R, R].
        other = jnp.linspace(-1, 1, _GRID, dtype=self.radius.dtype) * self.radius
        change = (self.features(other, releases, length) - 1) / self.widths(releases, length)[:, None]
        moved = jnp.where(made_releases(releases, length)[..., None], change**2, 0)
        return _peak(jnp.sum(moved, -2))

    def lower_limit(
        self, records: Float[Array, "... m"], releases: ArrayLike, length: int, kappa: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """κ_L times the limit of tr A_L^-1, which falls with L."""
        return kappa * moment_trace_limit(records, self.radius, self.sensitivity)

    def _powers(self, records, length):
        """r^(l-1) for l = 1..length; a power with a float exponent has no derivative at 0."""
        r = (records / self.radius)[..., None, :]
        factors = jnp.broadcast_to(r, (*records.shape[:-1], length - 1, records.shape[-1]))
        return jnp.concatenate([jnp.ones_like(r), jnp.cumprod(factors, -2)], -2)


def _peak(values):
    """The greatest of equally spaced values along the last axis, or the vertex of the parabola around it."""
    at = jnp.clip(jnp.argmax(values, -1, keepdims=True), 1, values.shape[-1] - 2)
    before, top, after = (jnp.take_along_axis(values, at + step, -1)[..., 0] for step in (-1, 0, 1))
    bend, tilt = before + after - 2 * top, after - before
    peaked = jnp.abs(tilt) < -2 * bend
    vertex = top - jnp.where(peaked, tilt**2 / (8 * jnp.where(peaked, bend, -1)), 0)
    return jnp.maximum(vertex, jnp.max(values, -1))


def moment_trace_limit(records, radius, sensitivity):
    """The limit of tr A_L^-1 as L grows: records at the ends drop out, the others leave an infinite Gram matrix.

    The Gram matrix is inverted as it is, so that its rounding error is taken off: the result is a bound from below.
    """
    r = records / radius
    interior = jnp.abs(r) < 1
    r = jnp.where(interior, r, 0)
    both = interior[..., :, None] & interior[..., None, :]
    gram = _infinite_gram(r[..., :, None] * r[..., None, :], sensitivity)
    scale = jnp.sqrt(jnp.diagonal(gram, axis1=-2, axis2=-1))
    m = records.shape[-1]
    unit = jnp.where(both, gram / (scale[..., :, None] * scale[..., None, :]), jnp.eye(m, dtype=r.dtype))
    inverse = left_inverse(unit)  # 0 where records are equal
    condition = jnp.sqrt(jnp.sum(unit**2, (-2, -1)) * jnp.sum(inverse**2, (-2, -1)))
    trust = jnp.maximum(1 - 4 * m * jnp.finfo(r.dtype).eps * jax.lax.stop_gradient(condition), 0)
    kept = jnp.where(interior, jnp.diagonal(inverse, axis1=-2, axis2=-1) / scale**2, 0)
    return 4 * radius**2 * trust * jnp.sum(kept, -1)


def _infinite_gram(x, sensitivity):
    """Σ_l (2/w_l)² l² x^(l-1) for |x| < 1."""

    def total(x):
        return (1 + x) / (1 - x) ** 3

    return total(x) if sensitivity == "paper" else (5 * total(x) - 3 * total(-x)) / 2


class Thresholds(AbstractFamily):
    """How many records lie above each of L thresholds, counted smoothly: q_l = (1/m) Σ_k h(z_k - t_l).

    Attributes:
        step: h.
        radius: R > 0; the records lie in [-R, R].
        grid: where the L thresholds lie: "midpoint", -R + 2R (l - 1/2)/L; "interior", -R + 2R l/(L + 1);
            "endpoint", L equal steps from -R to R; or the thresholds themselves, of which the first L are used.
        sensitivity: "exact", the range of h(z - t) over the records, which is at most 1; or "paper", 2.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-D and Table I. It
        names no grid, on which every result depends, and its sensitivity is at least twice the exact one.
    """

    step: AbstractStep
    radius: Float[Array, ""]
    grid: str | Float[Array, "k"]
    sensitivity: str = eqx.field(static=True)

    def __init__(
        self, step: AbstractStep, *, radius: ArrayLike = 1.0, grid: str | Numbers | None, sensitivity: str = "exact"
    ):
        self.step = as_kind(step, "step", AbstractStep)
        self.radius = _radius(radius)
        self.grid = as_choice(grid, "grid", GRIDS) if isinstance(grid, str) else _thresholds(grid, self.radius)
        self.sensitivity = _sensitivity(sensitivity)

    def thresholds(self, releases: ArrayLike, length: int) -> Float[Array, "... l"]:
        """t_l; those beyond the number of releases are meaningless."""
        if not isinstance(self.grid, str):
            if length > self.grid.shape[0]:
                raise fail("grid", f"hold at least {length} thresholds, one per release", f"of {self.grid.shape[0]}")
            return self.grid[:length]
        order = jnp.arange(1, length + 1).astype(self.radius.dtype)
        count = jnp.asarray(releases, self.radius.dtype)[..., None]
        share = {
            "midpoint": (order - 0.5) / count,
            "interior": order / (count + 1),
            "endpoint": (order - 1) / jnp.maximum(count - 1, 1),
        }[self.grid]
        return self.radius * (2 * share - 1)

    def features(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """h(z - t)."""
        return self.step.value(self._beyond(records, releases, length))

    def slopes(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """h'(z - t)."""
        return self.step.slope(self._beyond(records, releases, length))

    def widths(self, releases: ArrayLike, length: int) -> Float[Array, "... l"]:
        """The range of h(z - t), or 2."""
        return self._width(self.thresholds(releases, length))

    def joint_sensitivity(self, releases: ArrayLike, length: int) -> Float[Array, "..."]:
        """The sum of the largest changes of each release, exact for steps that rise, a bound for bumps."""
        t = self.thresholds(releases, length)
        change = self.step.spread(-self.radius - t, self.radius - t) / self._width(t)
        return jnp.sum(jnp.where(made_releases(releases, length), change**2, 0), -1)

    def lower_limit(
        self, records: Float[Array, "... m"], releases: ArrayLike, length: int, kappa: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """κ_L m w²/(L max h'²), w the least width."""
        least = self.step.least_spread(self.radius) if self.sensitivity == "exact" else 2.0
        return kappa * records.shape[-1] * (least / self.step.steepest) ** 2 / jnp.asarray(releases, kappa.dtype)

    @eqx.filter_jit
    def limit_information(self, records: Float[Array, "... m"]) -> Float[Array, "... m m"]:
        """The limit K of A_L/L as the grid gets finer, K_jk = (1/2R) ∫ h'(z_j - t) h'(z_k - t)/w(t)² dt over [-R, R].

        If K is positive definite, the bound on the multiset approaches (κ_L/L) tr K^-1.

        Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-D, whose statement
            is lost; its condition is not automatic (piecewise polynomials with a bandwidth of at least 2R fail it).
        """
        knots = (records[..., :, None] + self.step.knots).reshape(*records.shape[:-1], -1)
        ends = jnp.broadcast_to(jnp.stack([-self.radius, self.radius]), (*records.shape[:-1], 2))
        knots = jnp.sort(jnp.clip(jnp.concatenate([knots, ends], -1), -self.radius, self.radius), -1)
        t, weights = (x.reshape(*records.shape[:-1], -1) for x in _quadrature(knots))
        slopes = self.step.slope(records[..., :, None] - t[..., None, :]) / self._width(t)[..., None, :]
        return product(slopes * weights[..., None, :], jnp.swapaxes(slopes, -2, -1)) / (2 * self.radius)

    def _beyond(self, records, releases, length):
        return records[..., None, :] - self.thresholds(releases, length)[..., None]

    def _width(self, t):
        if self.sensitivity == "paper":
            return jnp.full_like(t, 2)
        return self.step.spread(-self.radius - t, self.radius - t)


class FeatureMeans(AbstractFamily):
    """Means of any differentiable features of one record: q_l = (1/m) Σ_k φ_l(z_k), slopes by automatic derivatives.

    Attributes:
        feature: from one record (a number) to the K features that can be released, in order.
        width: w_l > 0, the range of each feature over [-radius, radius], shape [K].
        radius: R > 0; the records lie in [-R, R].
    """

    feature: Callable[[Float[Array, ""]], Float[Array, "k"]]
    width: Float[Array, "k"]
    radius: Float[Array, ""]

    def __init__(
        self, feature: Callable[[Float[Array, ""]], Float[Array, "k"]], *, width: Numbers, radius: ArrayLike = 1.0
    ):
        self.feature = feature
        self.width = in_range(jnp.atleast_1d(as_float(width, "width")), "width", 0.0, open_low=True, open_high=True)
        self.radius = _radius(radius)

    def features(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """φ_l(z_k)."""
        return self._each(self.feature, records, length)

    def slopes(self, records: Float[Array, "... m"], releases: ArrayLike, length: int) -> Float[Array, "... l m"]:
        """φ_l'(z_k)."""
        return self._each(jax.jacfwd(self.feature), records, length)

    def widths(self, releases: ArrayLike, length: int) -> Float[Array, "... l"]:
        """w_l, as given."""
        if length > self.width.shape[0]:
            raise fail("width", f"hold at least {length} numbers, one per release", f"of {self.width.shape[0]}")
        return self.width[:length]

    def joint_sensitivity(self, releases: ArrayLike, length: int) -> Float[Array, "..."]:
        """L, which is a bound."""
        return jnp.asarray(releases, self.radius.dtype)

    def lower_limit(
        self, records: Float[Array, "... m"], releases: ArrayLike, length: int, kappa: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """0: nothing is known."""
        return jnp.zeros_like(kappa)

    def _each(self, function, records, length):
        found = jax.vmap(function)(records.reshape(-1))[:, :length]
        return jnp.swapaxes(found.reshape(*records.shape, length), -2, -1)


def _thresholds(grid, radius):
    if grid is None:
        raise fail("grid", "be " + ", ".join(f'"{name}"' for name in GRIDS) + " or the thresholds themselves", grid)
    grid = jnp.atleast_1d(as_float(grid, "grid"))
    return in_range(grid, "grid", -float(radius), float(radius)) if is_known(grid, radius) else grid


def _quadrature(knots):
    """Gauss-Legendre nodes and weights on every piece between neighbouring knots, shape [..., pieces, nodes]."""
    nodes, weights = (x.astype(knots.dtype) for x in np.polynomial.legendre.leggauss(_NODES))
    middle, half = (knots[..., 1:] + knots[..., :-1]) / 2, (knots[..., 1:] - knots[..., :-1]) / 2
    return middle[..., None] + half[..., None] * nodes, half[..., None] * weights
