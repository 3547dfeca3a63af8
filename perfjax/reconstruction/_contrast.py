"""Information about one record of an exchangeable background: closed forms of the Schur complement."""

import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_count, as_floats, fail, in_range

__all__ = ["exchangeable_information", "one_contrast_information", "subset_means_information"]


def one_contrast_information(
    own: ArrayLike, cross: ArrayLike, other: ArrayLike, between: ArrayLike, records: ArrayLike
) -> Float[Array, "..."]:
    """The information about one record of an exchangeable background, I_eff = a - (m - 1) c²/(d + (m - 2) e).

    The Fisher information is [[a, c 1'], [c 1, (d - e) I + e 1 1']]: the background enters through its sum alone.

    Args:
        own: a >= 0, of the target.
        cross: c, between the target and each other record.
        other: d >= 0, of each other record.
        between: e, between two others.
        records: m >= 1, the target included.

    Returns:
        I_eff; `own` for m = 1, and where d + (m - 2) e = 0, which forces c = 0. Also where d = e (a singular
        background), with the pseudo-inverse: a - c²/d.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Lemma 1; singular blocks: ours.

    Example:
        >>> print(f"{one_contrast_information(7.0, 2.0, 5.0, 1.0, 6):.6f}")
        4.777778
    """
    a, c, d, e, m = as_floats(own=own, cross=cross, other=other, between=between, records=records)
    a, d, m = in_range(a, "own", 0.0), in_range(d, "other", 0.0), in_range(m, "records", 1.0)
    weight = d + (m - 2) * e
    explained = (weight > 0) & (m > 1)
    return a - jnp.where(explained, (m - 1) * c**2 / jnp.where(explained, weight, 1), 0)


def exchangeable_information(own: ArrayLike, cross: ArrayLike, records: ArrayLike) -> Float[Array, "..."]:
    """`one_contrast_information` of fully exchangeable records (a = d = α, c = e = τ), written without cancellation.

    I_eff = (α - τ)(α + (m - 1) τ)/(α + (m - 2) τ).

    Args:
        own: α > 0.
        cross: τ in [0, α]; α if all records are in every release, which gives 0.
        records: m >= 2.

    Returns:
        I_eff.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section III-B.
    """
    alpha, tau, m = as_floats(own=own, cross=cross, records=records)
    alpha = in_range(alpha, "own", 0.0, open_low=True)
    tau, m = in_range(tau, "cross", 0.0), in_range(m, "records", 2.0)
    return (alpha - tau) * (alpha + (m - 1) * tau) / (alpha + (m - 2) * tau)


def subset_means_information(records: int, subset: int) -> float:
    """The information about one record in the means of all subsets of one size, with noise of variance 1 on each.

    Args:
        records: m >= 2.
        subset: s, from 1 to m; at m the only subset is everybody, and the information is 0.

    Returns:
        I_eff, with α = C(m - 1, s - 1)/s² and τ = C(m - 2, s - 2)/s² in `exchangeable_information`.

    Raises:
        ValueError: if an argument is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section III-B.

    Example:
        >>> print(f"{subset_means_information(6, 3):.6f}")
        0.769231
    """
    m = as_count(records, "records", low=2)
    s = as_count(subset, "subset", low=1)
    if s > m:
        raise fail("subset", f"be at most the number of records, {m}", s)
    alpha, tau = math.comb(m - 1, s - 1) / s**2, (math.comb(m - 2, s - 2) if s > 1 else 0) / s**2
    return (alpha - tau) * (alpha + (m - 1) * tau) / (alpha + (m - 2) * tau)
