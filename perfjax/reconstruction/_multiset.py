"""How precisely the multiset of the records can be told from L releases about all of them: Cramér-Rao bounds."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from perfjax._check import Numbers, as_floats, as_kind, in_precision, in_range
from perfjax._linear import product
from perfjax.reconstruction._arguments import as_records, as_releases, inside, longest
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction._inverses import left_inverse, transposed
from perfjax.reconstruction._reasons import Reason

__all__ = [
    "label_floor",
    "multiset_bound",
    "multiset_information",
    "multiset_reason",
    "trace_bound",
    "transcript_rows",
]


def transcript_rows(
    family: AbstractFamily, records: Numbers, releases: ArrayLike, *, max_releases: int | None = None
) -> Float[Array, "... l m"]:
    """The Jacobian of L releases by the records, in units of their noise at κ = 1.

    Args:
        family: what is released.
        records: z in [-R, R], m along the last axis.
        releases: L, whole and at least 1; broadcast against the leading axes of the records.
        max_releases: the number of rows; needed only where `releases` is traced.

    Returns:
        Rows beyond L are zero.

    Raises:
        ValueError: if an argument is out of range.
    """
    return _rows(*_transcript(family, records, releases, max_releases))


def multiset_information(
    family: AbstractFamily, records: Numbers, releases: ArrayLike, *, max_releases: int | None = None
) -> Float[Array, "... m m"]:
    """The Fisher information of L releases about the records at κ = 1, A_L; divide by κ_L.

    Good for bounds that need sums of its entries. Its condition number is the square of that of
    `transcript_rows`: never invert it.

    Args:
        family, records, releases, max_releases: as in `transcript_rows`.

    Returns:
        A_L, symmetric and positive semidefinite.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-A.
    """
    rows = transcript_rows(family, records, releases, max_releases=max_releases)
    return product(transposed(rows), rows)


def multiset_bound(
    family: AbstractFamily,
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    max_releases: int | None = None,
) -> Float[Array, "..."]:
    """The least Σ_k E(estimate_k - z_k)² of locally unbiased estimators of the sorted records: κ_L tr A_L^-1.

    Computed from a QR factorisation of `transcript_rows` with unit columns, κ |R^-1|² (Frobenius). The rank is m if
    1/|R^-1| is above max(L, m) rounding errors of |R|. Differentiable in the records, κ and the family's numbers.

    Args:
        family, records, releases, max_releases: as in `transcript_rows`.
        kappa: κ_L in (0, ∞], see `accounting.kappa`.

    Returns:
        The bound; infinite, with a zero gradient, where `multiset_reason` says why.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV-A; eq (60) and (62) for
        two records and moments.

    Example:
        >>> from perfjax.accounting import kappa
        >>> from perfjax.reconstruction import Moments
        >>> noise = kappa(releases=2, epsilon=1.0, delta=1e-5, accountant="basic")
        >>> print(f"{multiset_bound(Moments(1.0, 'paper'), [-0.4, 0.7], 2, kappa=noise):.1f}")
        378.0
    """
    return _bound_and_reason(family, records, releases, kappa, max_releases)[0]


def multiset_reason(
    family: AbstractFamily,
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    max_releases: int | None = None,
) -> Int[Array, "..."]:
    """Whether `multiset_bound` is finite, and if not, why.

    The labels of the records are never identified by releases about all of them: `Reason.LABEL_SYMMETRY`, whatever
    this says. A local bound does not show it; see `label_floor`.

    Args:
        family, records, releases, kappa, max_releases: as in `multiset_bound`.

    Returns:
        `Reason`, as an integer.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> from perfjax.reconstruction import Moments
        >>> print(Reason(int(multiset_reason(Moments(1.0), [0.3, 0.3], 2, kappa=1.0))).meaning)
        Two records are equal, so that the releases cannot tell which way they part.
    """
    return _bound_and_reason(family, records, releases, kappa, max_releases)[1]


def trace_bound(
    family: AbstractFamily,
    records: Numbers,
    releases: ArrayLike,
    *,
    kappa: ArrayLike,
    max_releases: int | None = None,
) -> Float[Array, "..."]:
    """A bound from below on `multiset_bound` that needs no inverse: κ_L m²/tr A_L.

    Args:
        family, records, releases, kappa, max_releases: as in `multiset_bound`.

    Returns:
        The bound; infinite where no release depends on any record.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", proof of the bound of Section IV-D,
        which needs neither its spectral law nor compact support.
    """
    records, kappa = as_floats(records=records, kappa=kappa)
    kappa = in_range(kappa, "kappa", 0.0, open_low=True)
    family, records, releases, length = _transcript(family, records, releases, max_releases)
    trace = jnp.sum(_rows(family, records, releases, length) ** 2, (-2, -1))
    released = trace > 0
    return jnp.where(released, kappa * records.shape[-1] ** 2 / jnp.where(released, trace, 1), jnp.inf)


def label_floor(records: Numbers) -> Float[Array, "..."]:
    """The error that no estimator of one labelled record can beat if labels do not show: (1/m) Σ (z_k - mean)².

    On average over the labels. It holds at any noise, none included, for every transcript that does not change when
    records are exchanged.

    Args:
        records: z, m along the last axis.

    Returns:
        The mean squared error of always answering with the mean of the records.

    Raises:
        ValueError: if there is no record.

    Source: ours. "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV, says only that
        labels are not identified; a local bound on one label is finite nevertheless.

    Example:
        >>> print(f"{label_floor([-0.5, 0.1, 0.8]):.5f}")
        0.28222
    """
    (records,) = as_floats(records=records)
    return jnp.var(as_records(records), axis=-1)


def _transcript(family, records, releases, max_releases):
    """The arguments of one transcript, checked, in the dtype of the records."""
    (records,) = as_floats(records=records)
    length = longest(releases, max_releases)
    family = in_precision(as_kind(family, "family", AbstractFamily), records.dtype)
    records = inside(as_records(records), family.radius)
    return family, records, as_releases(releases, length).astype(records.dtype), length


def _bound_and_reason(family, records, releases, kappa, max_releases):
    records, kappa = as_floats(records=records, kappa=kappa)
    kappa = in_range(kappa, "kappa", 0.0, open_low=True)
    family, records, releases, length = _transcript(family, records, releases, max_releases)
    return bound_and_reason(family, records, releases, kappa, length)


@eqx.filter_jit
def _rows(family, records, releases, length):
    return family.rows(records, releases, length)


@eqx.filter_jit
def bound_and_reason(
    family: AbstractFamily,
    records: Float[Array, "... m"],
    releases: Float[Array, "..."],
    kappa: Float[Array, "..."],
    length: int,
) -> tuple[Float[Array, "..."], Int[Array, "..."]]:
    """`multiset_bound` and `multiset_reason` of checked arguments."""
    rows = family.rows(records, releases, length)
    inverse = left_inverse(rows)
    reason = _reason(rows, inverse, records, releases, kappa)
    identified = reason == Reason.IDENTIFIED
    trace = jnp.sum(inverse**2, (-2, -1))
    return jnp.where(identified, jnp.where(identified, kappa, 1) * trace, jnp.inf), reason


def _reason(rows, inverse, records, releases, kappa):
    m = records.shape[-1]
    ordered = jnp.sort(jax.lax.stop_gradient(records), -1)
    causes = {
        Reason.INFEASIBLE_BUDGET: jnp.isinf(kappa),
        Reason.NOT_RELEASED: jnp.any(jnp.all(rows == 0, -2), -1),
        Reason.TOO_FEW_RELEASES: releases < m,
        Reason.COLLISION: jnp.any(ordered[..., 1:] == ordered[..., :-1], -1),
        Reason.RANK_DEFICIENT: jnp.all(inverse == 0, (-2, -1)),
    }
    shape = jnp.broadcast_shapes(*(cause.shape for cause in causes.values()))
    reason = jnp.full(shape, Reason.IDENTIFIED)
    for code in reversed(causes):
        reason = jnp.where(causes[code], code, reason)
    return reason
