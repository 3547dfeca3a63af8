"""What stands beside a Cramér-Rao bound: what no data at all would give, and what binds biased estimators too."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Numbers, as_floats, as_kind, in_precision, in_range
from perfjax.reconstruction._arguments import as_records, as_releases, inside, longest
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction._inverses import left_inverse

__all__ = ["multiset_van_trees_bound", "trivial_risk", "van_trees_bound"]

_NODES = 32  # Gauss-Legendre, over the part of the box that belongs to a record


def trivial_risk(records: ArrayLike = 1, *, radius: ArrayLike = 1.0) -> Float[Array, "..."]:
    """The worst squared error of always answering 0, m R²: an unbiased bound above it says nothing about an attacker.

    Args:
        records: m >= 1, how many are estimated.
        radius: R > 0; they lie in [-R, R].

    Returns:
        m R².

    Raises:
        ValueError: if an argument is out of range.

    Source: ours.
    """
    m, radius = as_floats(records=records, radius=radius)
    return in_range(m, "records", 1.0) * in_range(radius, "radius", 0.0, open_low=True) ** 2


def van_trees_bound(information: Numbers, *, radius: ArrayLike = 1.0) -> Float[Array, "..."]:
    """The least average squared error of *any* estimator, tr (I + (π²/R²) 1)^-1, over the prior cos²(πx/2R)/R.

    Args:
        information: I, averaged over the prior where it depends on the parameters, [..., p, p]; zero where nothing
            is identified.
        radius: R > 0; the parameters lie in [-R, R].

    Returns:
        The bound, finite whatever the information. It is on an average: at some parameters an estimator may err by
        less.

    Raises:
        ValueError: if an argument is out of range.

    Source: Gill, Levit, "Applications of the van Trees inequality", for this prior; not in "Reconstruction Limits for
        Repeated Differentially Private Aggregates".

    Example:
        >>> print(f"{van_trees_bound([[0.0]]):.5f}")
        0.10132
    """
    information, radius = as_floats(information=information, radius=radius)
    prior = (jnp.pi / in_range(radius, "radius", 0.0, open_low=True)) ** 2
    total = information + prior[..., None, None] * jnp.eye(information.shape[-1], dtype=information.dtype)
    return jnp.trace(jnp.linalg.inv(total), axis1=-2, axis2=-1)


def multiset_van_trees_bound(
    family: AbstractFamily, records: Numbers, releases: ArrayLike, *, kappa: ArrayLike, max_releases: int | None = None
) -> Float[Array, "..."]:
    """The least average squared error of *any* estimator of the sorted records, over a neighbourhood of them.

    Each record has a cos² prior on the part of [-R, R] that is nearer to it than to any other record, so that the
    order of the records is known and the sorted multiset is a plain vector: tr (E[A_L]/κ_L + J)^-1, J_k = (π/h_k)², h_k
    half the length of that part.

    Args:
        family, records, releases, kappa, max_releases: as in `multiset_bound`.

    Returns:
        The bound, finite also where `multiset_bound` is not. It is on an average: at the records themselves an
        estimator may err by less, and `multiset_bound` be below it.

    Raises:
        ValueError: if an argument is out of range.

    Source: as `van_trees_bound`; the neighbourhood: ours. A prior on all of [-R, R] bounds labelled records only.
    """
    records, kappa = as_floats(records=records, kappa=kappa)
    kappa = in_range(kappa, "kappa", 0.0, open_low=True)
    length = longest(releases, max_releases)
    family = in_precision(as_kind(family, "family", AbstractFamily), records.dtype)
    z = inside(as_records(records), family.radius)
    return nearby_van_trees(family, z, as_releases(releases, length).astype(z.dtype), kappa, length)


@eqx.filter_jit
def nearby_van_trees(
    family: AbstractFamily,
    records: Float[Array, "... m"],
    releases: Float[Array, "..."],
    kappa: Float[Array, "..."],
    length: int,
) -> Float[Array, "..."]:
    """`multiset_van_trees_bound` of checked arguments."""
    z = jnp.sort(records, -1)
    edge = jnp.broadcast_to(family.radius, (*z.shape[:-1], 1))
    middle = (z[..., 1:] + z[..., :-1]) / 2
    low, high = jnp.concatenate([-edge, middle], -1), jnp.concatenate([middle, edge], -1)
    half = (high - low) / 2
    u, weights = np.polynomial.legendre.leggauss(_NODES)
    weights = weights * np.cos(np.pi * u / 2) ** 2
    around = ((high + low) / 2)[..., None, :] + half[..., None, :] * u.astype(z.dtype)[:, None]
    rows = family.rows(around, releases[..., None], length)
    weights = weights.astype(z.dtype)[:, None, None]
    first, second = jnp.sum(weights * rows, -3), jnp.sum(weights * rows**2, -3)
    own = jnp.maximum(jnp.sum(second - first**2, -2), 0)  # E[A_L] is first' first + diag(own)
    prior = (jnp.pi / jnp.where(half > 0, half, 1)) ** 2
    scale = kappa[..., None]
    around = jnp.sqrt(own / scale + prior)[..., None] * jnp.eye(z.shape[-1], dtype=z.dtype)
    # A record squeezed between two equal ones is known, and tells nothing of the others.
    known = half <= 0
    first = jnp.where(known[..., None, :], 0, first / jnp.sqrt(scale)[..., None])
    error = jnp.sum(left_inverse(jnp.concatenate([first, around], -2)) ** 2, -1)
    return jnp.sum(jnp.where(known, 0, error), -1)
