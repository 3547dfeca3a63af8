"""Closed forms for moments under the paper's sensitivities, 2R^l/m: energies, bounds, and pairs of records."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers, as_floats, in_range
from perfjax._square_root import square_root
from perfjax.reconstruction._arguments import as_records, as_releases, inside, longest

__all__ = [
    "boundary_pair_bound",
    "coordinate_bound",
    "determinant_bound",
    "interior_bound",
    "moment_energy",
    "pair_bound",
    "pair_determinant",
    "two_moment_bound",
    "two_moment_estimate",
]


def moment_energy(x: ArrayLike, releases: ArrayLike, *, max_releases: int | None = None) -> Float[Array, "..."]:
    """F(x, L) = Σ_{l=1..L} l² x^(l-1): the entries of 4R² A_L are F(r_j r_k, L), r = z/R.

    Args:
        x: in [-1, 1].
        releases: L, whole and at least 1; broadcast against x.
        max_releases: the most terms; needed only where `releases` is traced.

    Returns:
        F, by direct summation; the closed form loses ten digits at x = 0.999.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-C.

    Example:
        >>> float(moment_energy(-1.0, 25))
        325.0
    """
    (x,) = as_floats(x=x)
    length = longest(releases, max_releases)
    return _energy(in_range(x, "x", -1.0, 1.0), as_releases(releases, length).astype(x.dtype), length)


def coordinate_bound(
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    radius: ArrayLike = 1.0,
    max_releases: int | None = None,
) -> Float[Array, "... m"]:
    """A bound from below on the variance of each record's estimate: 4 κ_L R²/F(r_j², L).

    Alone it shows that the bound on the multiset grows without end with κ_L as soon as one record lies inside
    (-R, R), whatever the accountant.

    Args:
        records: z in [-R, R], m along the last axis.
        releases: L, whole and at least 1; broadcast against the leading axes of the records.
        kappa: κ_L in (0, ∞), for moments with sensitivity 2R^l/m.
        radius: R > 0.
        max_releases: the most moments; needed only where `releases` is traced.

    Returns:
        One bound per record.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Appendix D-B.
    """
    r, kappa, radius, count, length = _arguments(records, releases, kappa, radius, max_releases)
    return 4 * kappa[..., None] * radius**2 / _energy(r * r, count[..., None], length)


def interior_bound(records: Numbers, *, kappa: ArrayLike, radius: ArrayLike = 1.0) -> Float[Array, "... m"]:
    """`coordinate_bound` with as many moments as one likes at the same noise: 4 κ R² (1 - r²)³/(1 + r²).

    Args:
        records: z in [-R, R], m along the last axis.
        kappa: κ in (0, ∞), of each release.
        radius: R > 0.

    Returns:
        One bound per record; 0 at -R and R.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Appendix D-B.
    """
    z, kappa, radius = as_floats(records=records, kappa=kappa, radius=radius)
    kappa, radius = _positive(kappa, "kappa"), _positive(radius, "radius")
    square = (inside(as_records(z), radius) / radius) ** 2
    return 4 * kappa[..., None] * radius**2 * (1 - square) ** 3 / (1 + square)


def determinant_bound(
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    radius: ArrayLike = 1.0,
    max_releases: int | None = None,
) -> Float[Array, "..."]:
    """A bound from below on the multiset: 4 m κ_L R²/(Π_k F(r_k², L))^(1/m).

    With records at both ends it does not grow under linear accountants, where `coordinate_bound` still does.

    Args:
        records, releases, kappa, radius, max_releases: as in `coordinate_bound`.

    Returns:
        The bound.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (78).
    """
    r, kappa, radius, count, length = _arguments(records, releases, kappa, radius, max_releases)
    log_energy = jnp.mean(jnp.log(_energy(r * r, count[..., None], length)), -1)
    return 4 * r.shape[-1] * kappa * radius**2 * jnp.exp(-log_energy)


def pair_determinant(
    records: Numbers, releases: ArrayLike, *, radius: ArrayLike = 1.0, max_releases: int | None = None
) -> Float[Array, "..."]:
    """D(L) = F(r_1²) F(r_2²) - F(r_1 r_2)², written without cancellation.

    D = (r_2 - r_1)² Σ_{i<l} i² l² (r_1 r_2)^(2i-2) h_{l-i-1}(r_1, r_2)², h_k = Σ_j r_1^j r_2^(k-j).

    Args:
        records: two records in [-R, R] along the last axis.
        releases, radius, max_releases: as in `coordinate_bound`.

    Returns:
        D; 0 for one release or equal records.

    Raises:
        ValueError: if an argument is out of range or there are not two records.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Appendix D-C; the second form: ours.

    Example:
        >>> print(f"{pair_determinant([-0.4, 0.7], 2):.4f}")
        4.8400
    """
    (z,) = as_floats(records=records)
    r, _, _, count, length = _arguments(as_records(z, exactly=2), releases, 1.0, radius, max_releases)
    return _determinant(r[..., 0], r[..., 1], count, length)


def pair_bound(
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    radius: ArrayLike = 1.0,
    max_releases: int | None = None,
) -> Float[Array, "..."]:
    """`multiset_bound` for two records and moments, in closed form: 4 κ_L R² (F(r_1²) + F(r_2²))/D(L).

    Args:
        records: two records in [-R, R] along the last axis.
        releases, kappa, radius, max_releases: as in `coordinate_bound`.

    Returns:
        The bound; infinite for one release or equal records.

    Raises:
        ValueError: if an argument is out of range or there are not two records.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (60).
    """
    (z,) = as_floats(records=records)
    r, kappa, radius, count, length = _arguments(as_records(z, exactly=2), releases, kappa, radius, max_releases)
    determinant = _determinant(r[..., 0], r[..., 1], count, length)
    energy = jnp.sum(_energy(r * r, count[..., None], length), -1)
    found = determinant > 0
    return jnp.where(found, 4 * kappa * radius**2 * energy / jnp.where(found, determinant, 1), jnp.inf)


def two_moment_bound(records: Numbers, *, kappa: ArrayLike, radius: ArrayLike = 1.0) -> Float[Array, "..."]:
    """`pair_bound` at L = 2: κ_2 R² (R² + 4 mid² + 4 gap²)/(2 gap²), mid and gap half the sum and half the difference.

    Not a pure gap^-2 law: it flattens to 2 κ_2 R² for wide pairs.

    Args:
        records: two records in [-R, R] along the last axis.
        kappa: κ_2 in (0, ∞).
        radius: R > 0.

    Returns:
        The bound; infinite for equal records.

    Raises:
        ValueError: if an argument is out of range or there are not two records.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", eq (62).
    """
    z, kappa, radius = as_floats(records=records, kappa=kappa, radius=radius)
    kappa, radius = _positive(kappa, "kappa"), _positive(radius, "radius")
    z = inside(as_records(z, exactly=2), radius)
    mid, gap = (z[..., 0] + z[..., 1]) / 2, (z[..., 1] - z[..., 0]) / 2
    apart = gap != 0
    gap = jnp.where(apart, gap, 1)
    return jnp.where(apart, kappa * radius**2 * (radius**2 + 4 * mid**2 + 4 * gap**2) / (2 * gap**2), jnp.inf)


def boundary_pair_bound(releases: ArrayLike, *, kappa: ArrayLike, radius: ArrayLike = 1.0) -> Float[Array, "..."]:
    """`pair_bound` of the records -R and R: 12 κ_L R² (2L + 1)/((L - 1) L (L + 1) (L + 2)).

    It falls with every further moment under every accountant of `accounting.kappa`.

    Args:
        releases: L >= 1.
        kappa: κ_L in (0, ∞).
        radius: R > 0.

    Returns:
        The bound; infinite at L = 1.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours. "Reconstruction Limits for Repeated Differentially Private Aggregates" sees it fall up to L = 40.
    """
    count, kappa, radius = as_floats(releases=releases, kappa=kappa, radius=radius)
    kappa, radius = _positive(kappa, "kappa"), _positive(radius, "radius")
    count = in_range(count, "releases", 1.0)
    return 12 * kappa * radius**2 * (2 * count + 1) / ((count - 1) * count * (count + 1) * (count + 2))


def two_moment_estimate(moments: Numbers) -> Float[Array, "... 2"]:
    """Two records from their mean and mean square: mid ∓ gap, gap = √max(y_2 - y_1², 0).

    The maximum likelihood estimate where that lies in [-R, R]; its error attains `two_moment_bound` at small noise.

    Args:
        moments: y_1 and y_2 along the last axis, noisy.

    Returns:
        The records in ascending order.

    Raises:
        ValueError: if there are not two moments.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Appendix D-C.

    Example:
        >>> print(two_moment_estimate([0.0, 0.25]))
        [-0.5  0.5]
    """
    (y,) = as_floats(moments=moments)
    mid, spread = y[..., 0], y[..., 1] - y[..., 0] ** 2
    gap = square_root(spread)
    return jnp.stack([mid - gap, mid + gap], -1)


def _positive(value, name):
    return in_range(value, name, 0.0, open_low=True, open_high=True)


def _arguments(records, releases, kappa, radius, max_releases):
    z, kappa, radius = as_floats(records=records, kappa=kappa, radius=radius)
    kappa, radius = _positive(kappa, "kappa"), _positive(radius, "radius")
    length = longest(releases, max_releases)
    count = as_releases(releases, length).astype(z.dtype)
    return inside(as_records(z), radius) / radius, kappa, radius, count, length


@functools.partial(jax.jit, static_argnums=2)
def _energy(x, count, length):
    order = jnp.arange(1, length + 1).astype(x.dtype)
    terms = jnp.where(order <= count[..., None], order**2 * _powers(x, length), 0)
    return jnp.sum(terms, -1)


def _powers(x, length):
    """x^0 .. x^(length - 1) along a new last axis."""
    factors = jnp.broadcast_to(x[..., None], (*x.shape, length - 1))
    return jnp.concatenate([jnp.ones_like(x)[..., None], jnp.cumprod(factors, -1)], -1)


@functools.partial(jax.jit, static_argnums=3)
def _determinant(first, second, count, length):
    order = jnp.arange(1, length + 1).astype(first.dtype)
    between = (order[:, None] < order) & (order <= count[..., None, None])
    if length == 1:
        return jnp.zeros(jnp.broadcast_shapes(first.shape, count.shape), first.dtype)
    ahead = jnp.maximum(jnp.arange(length) - jnp.arange(length)[:, None] - 1, 0)
    sums = _symmetric_sums(first, second, length - 1)[..., ahead]
    outer = (order * _powers(first * second, length))[..., :, None]
    terms = jnp.where(between, (outer * order * sums) ** 2, 0)
    return (second - first) ** 2 * jnp.sum(terms, (-2, -1))


def _symmetric_sums(a, b, length):
    """h_k = Σ_j a^j b^(k-j) for k = 0..length - 1 along a new last axis."""

    def step(before, power):
        after = b * before + power
        return after, after

    _, sums = jax.lax.scan(step, jnp.zeros_like(a), jnp.moveaxis(_powers(a, length), -1, 0))
    return jnp.moveaxis(sums, 0, -1)
