"""How far apart a transcript is when records swap places, or are anything else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers
from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.reconstruction._box import closest
from perfjax.reconstruction.design_labels._transcript import HybridTranscript, as_arguments, as_shares

__all__ = ["closest_records", "profiled_separation", "swap_moves", "swap_separations"]

GRID_STARTS = 64  # random starts of a search over records, beside the corners


def swap_separations(
    transcript: HybridTranscript, records: Numbers, shares: Numbers, *, target: int, kappa: Numbers
) -> Float[Array, " m"]:
    """How far apart the transcript is when the target swaps places with each other record, in units of its noise.

    d_k² = (1/κ) Σ_g b_g (v_g(z) - v_g(z with z_j and z_k swapped))². An *upper bound* on how well the two are told
    apart: the other records are held fixed. See `profiled_separation`.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        shares: b_g, [G], at least 0.
        target: j, the place of the target among the records, from 0.
        kappa: κ_1 > 0, of the whole budget (`perfjax.accounting.kappa` of one release), for budgets that add up.

    Returns:
        d_k in [0, ∞), [m]; 0 at the target itself.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.

    Example:
        >>> from perfjax.reconstruction import Moments
        >>> transcript = HybridTranscript(Moments(1.0), 1, [[True, False]])
        >>> print(swap_separations(transcript, [0.5, -0.5], [0.5, 0.5], target=0, kappa=0.5))
        [0.  0.5]
    """
    records, shares, target, kappa = as_arguments(transcript, records, shares, target, kappa)
    return square_root(product(swap_moves(transcript, records, target), shares) / kappa)


def profiled_separation(
    transcript: HybridTranscript,
    records: Numbers,
    shares: Numbers,
    *,
    kappa: Numbers,
    low: Numbers,
    high: Numbers,
) -> Float[Array, ""]:
    """The least distance of the transcript from one of any records between `low` and `high`, in units of its noise.

    With the target held away from its true value and the others anywhere in [-R, R], this is what an attacker must
    overcome to rule that out; the swap is one candidate of many.

    Args:
        transcript: what is released.
        records: z, [m], in [-R, R].
        shares: b_g, [G], at least 0.
        kappa: κ_1 > 0, as in `swap_separations`.
        low: least value of each record, [m] or one for all.
        high: greatest value of each record, [m] or one for all.

    Returns:
        The distance, in [0, ∞). The search (64 random starts, corners, swaps) may miss a lower one.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: ours.
    """
    records, shares, _, kappa = as_arguments(transcript, records, shares, 0, kappa)
    low, high = _box(records, transcript.family.radius, low, high)
    return _profiled(transcript, records, jnp.sqrt(shares / kappa), low, high)


def closest_records(
    transcript: HybridTranscript, released: Numbers, shares: Numbers, *, low: Numbers, high: Numbers
) -> Float[Array, " m"]:
    """The records between `low` and `high` whose transcript is the likeliest to have been released.

    min Σ_g b_g (y_g - v_g(u))², each type having noise of variance κ/b_g; labels are kept.

    Args:
        transcript: what is released.
        released: y, [G], in units of the sensitivities.
        shares: b_g, [G], at least 0.
        low: least value of each record, [m] or one for all.
        high: greatest value of each record, [m] or one for all.

    Returns:
        u, [m], by the search of `profiled_separation`.

    Raises:
        ValueError: if an argument has the wrong shape or is out of range.

    Source: "Reconstruction Limits for Repeated Differentially Private Aggregates", Section V-C, with labels.
    """
    radius = transcript.family.radius
    released = _check.as_float(released, "released").astype(radius.dtype)
    if released.shape != (transcript.types,):
        raise _check.fail("released", f"be {transcript.types}, one for each type", f"of shape {released.shape}")
    middle = jnp.zeros(transcript.members.shape[1], radius.dtype)
    shares = as_shares(transcript, shares, radius.dtype)
    return _closest(transcript, released, jnp.sqrt(shares), *_box(middle, radius, low, high))[0]


def _box(records, radius, low, high):
    low, high = (_check.as_float(x, name).astype(records.dtype) for x, name in ((low, "low"), (high, "high")))
    for name, end in (("low", low), ("high", high)):
        if end.shape not in ((), records.shape):
            raise _check.fail(name, f"be one number or {records.size}", f"of shape {end.shape}")
    if _check.is_known(low, high) and not np.all(np.asarray(low) <= np.asarray(high)):
        raise _check.fail("low", "be at most `high`", low)
    low, high = jnp.maximum(low, -radius), jnp.minimum(high, radius)
    return jnp.broadcast_to(low, records.shape), jnp.broadcast_to(high, records.shape)


def swap_moves(transcript: HybridTranscript, records: Float[Array, " m"], target: int) -> Float[Array, "m types"]:
    """(v_g(z) - v_g(swapped))², by the record that the target swaps places with."""

    def swapped(other):
        return records.at[target].set(records[other]).at[other].set(records[target])

    # Features of all records do not change: computed, they would by their rounding.
    everyone = np.append(np.ones(transcript.features, bool), np.zeros(transcript.members.shape[0], bool))
    moved = jax.vmap(lambda other: transcript.values(swapped(other)))(jnp.arange(records.size))
    return jnp.where(everyone, 0, (moved - transcript.values(records)) ** 2)


@eqx.filter_jit
def _profiled(transcript, records, weights, low, high):
    return square_root(_closest(transcript, transcript.values(records), weights, low, high, near=records)[1])


@eqx.filter_jit
def _closest(transcript, released, weights, low, high, near=None):
    """The records in a box with the least Σ weights² (released - values)², and that sum."""
    m = low.size
    unit = np.random.default_rng(0).random((GRID_STARTS, m))
    corners = np.tri(m + 1, m, -1)
    starts = low + (high - low) * jnp.asarray(np.concatenate([unit, corners, corners[:, ::-1]]), low.dtype)
    if near is not None:
        swaps = jnp.stack([near.at[j].set(near[k]).at[k].set(near[j]) for j in range(m) for k in range(j + 1)])
        starts = jnp.concatenate([starts, jnp.clip(swaps, low, high)])
    return closest(lambda u: weights * (transcript.values(u) - released), starts, low, high)
