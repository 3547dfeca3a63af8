"""What the functions of this package ask of their arguments."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_count, as_float, fail, in_range, is_known

__all__ = ["as_records", "as_releases", "inside", "longest"]


def as_records(records: Float[Array, "..."], *, least: int = 1, exactly: int | None = None) -> Float[Array, "... m"]:
    """`records`, if there are enough of them along the last axis."""
    count = records.shape[-1] if records.ndim else 0
    if count < least or (exactly is not None and count != exactly):
        wanted = f"exactly {exactly}" if exactly is not None else f"at least {least}"
        raise fail("records", f"hold {wanted} records along their last axis", f"of shape {records.shape}")
    return records


def inside(records: Float[Array, "... m"], radius: Float[Array, ""]) -> Float[Array, "... m"]:
    """`records`, if all of them lie in [-radius, radius]; checked when it runs if either is traced."""
    if is_known(records, radius):
        return in_range(records, "records", -float(radius), float(radius))
    outside = ~(jnp.abs(records) <= radius)
    return eqx.error_if(records, outside, "Argument `records` must lie in [-radius, radius].")


def longest(releases: ArrayLike, max_releases: int | None) -> int:
    """The most releases there can be, which fixes the shape of a transcript."""
    if max_releases is not None:
        return as_count(max_releases, "max_releases", low=1)
    if not is_known(*jax.tree.leaves(releases)):
        raise ValueError("Argument `max_releases` must be given where the number of releases is traced, but is None.")
    return int(np.max(np.asarray(as_releases(releases, None))))


def as_releases(releases: ArrayLike, length: int | None) -> Float[Array, "..."]:
    """The number of releases as a float array without a derivative: whole, at least 1 and at most `length`."""
    count = as_float(releases, "releases")
    if is_known(count) and np.any(np.asarray(count) != np.round(np.asarray(count))):
        raise fail("releases", "be whole", count)
    count = in_range(count, "releases", 1.0, math.inf if length is None else float(length), open_high=length is None)
    return count if is_known(count) else jax.lax.stop_gradient(count)
