"""Whether labels show at all, which no local bound can tell: symmetry of a transcript under exchanging records."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from perfjax._check import Numbers, as_count, as_floats, fail

__all__ = ["label_twins"]


def label_twins(
    release: Callable[[Float[Array, "n"]], Float[Array, "l"]], probes: Numbers, target: int
) -> Bool[Array, "n"]:
    """Which records could be exchanged with the target without any release changing (`Reason.LABEL_SYMMETRY`).

    Local information about the target may be positive nevertheless: features then tell the values of the records,
    but not which of them is the target's, and `label_floor` holds.

    Args:
        release: q, from the records to the L noiseless releases.
        probes: several sets of records in general position, [P, n]; the answer holds for these, and for analytic
            releases with probability 1 for all records, if the probes were drawn at random.
        target: the index of the target.

    Returns:
        One flag per record, False for the target itself. Symmetries that move more than two records are not
        looked for; releases of the form g(Σ φ(x_k)) over members have none beyond exchanges.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; "Reconstruction Limits for Repeated Differentially Private Aggregates", Section IV, states it for
        static membership.

    Example:
        >>> probes = jax.random.normal(jax.random.key(0), (3, 3))
        >>> print(label_twins(lambda x: jnp.stack([x.sum(), x[0] ** 2]), probes, 2))
        [False  True False]
    """
    (probes,) = as_floats(probes=probes)
    if probes.ndim != 2 or not probes.shape[0]:
        raise fail("probes", "have the shape [sets, records]", f"of shape {probes.shape}")
    records = probes.shape[1]
    if as_count(target, "target", low=0) >= records:
        raise fail("target", f"name a record from 0 to {records - 1}", target)
    order = jnp.arange(records)
    swapped = jax.vmap(lambda k: order.at[k].set(target).at[target].set(k))(order)
    releases = jax.vmap(release)
    kept, moved = releases(probes), jax.vmap(lambda order: releases(probes[:, order]))(swapped)
    scale = jnp.max(jnp.abs(kept), 0)
    tolerance = float(jnp.finfo(probes.dtype).eps) ** (2 / 3) * scale
    return jnp.all(jnp.abs(moved - kept) <= tolerance, (1, 2)) & (order != target)
