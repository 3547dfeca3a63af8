"""The maximum likelihood estimate of any number of records in a box, by descent from every kind of corner."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from perfjax._check import Numbers, as_count, as_floats, as_kind, fail, in_precision, in_range
from perfjax.reconstruction._families import AbstractFamily
from perfjax.reconstruction._inverses import small_product, solve_positive

__all__ = ["MultisetEstimate", "multiset_estimate"]

_STEPS = 100
_DAMPING = (1e-3, 0.1, 10.0)  # at first; times this after a step that helped; and after one that did not


class MultisetEstimate(eqx.Module):
    """The most likely multiset of records.

    Attributes:
        records: in ascending order.
        misfit: half the chi-square there: the log-likelihood up to sign and a constant.
        converged: whether the best descent ended because no step could help.
    """

    records: Float[Array, "*batch m"]
    misfit: Float[Array, "*batch"]
    converged: Bool[Array, "*batch"]

    def __str__(self) -> str:
        if self.misfit.ndim:
            return f"MultisetEstimate of a batch {self.misfit.shape}"
        listed = ", ".join(f"{x:.6g}" for x in np.asarray(self.records))
        return f"MultisetEstimate: {listed}; half chi-square {self.misfit:.6g}"


def multiset_estimate(
    family: AbstractFamily, transcript: Numbers, *, records: int, noise_std: Numbers
) -> MultisetEstimate:
    """The m records in [-R, R] most likely to have given L noisy releases.

    Minimises Σ_l ((q_l(z) - y_l)/σ_l)²/2 over the box; the order of the records is free, since the releases do
    not depend on it. A damped Newton method with the bounds held where the gradient pushes against them starts
    from every pattern of records at the lower end, spread inside, and at the upper end: all corners are among
    them. Random starts alone miss the minimum in some per cent of draws at large noise.

    Args:
        family: what was released.
        transcript: y, the L noisy releases along the last axis, in the family's unit (for moments that of
            (z/R)^l).
        records: m >= 1, how many records there are. The number of starts is (m + 1)(m + 2)/2.
        noise_std: σ > 0 of each release, along the last axis.

    Returns:
        `MultisetEstimate`, batched like the transcript.

    Raises:
        ValueError: if an argument is out of range.

    Source: ours; the estimator of "Reconstruction Limits for Repeated Differentially Private Aggregates", Section V-C,
        for any number of records.
    """
    family = as_kind(family, "family", AbstractFamily)
    m = as_count(records, "records", low=1)
    y, noise_std = as_floats(transcript=transcript, noise_std=noise_std)
    if not y.ndim or not y.shape[-1]:
        raise fail("transcript", "hold at least one release along its last axis", f"of shape {y.shape}")
    noise_std = jnp.broadcast_to(in_range(noise_std, "noise_std", 0.0, open_low=True, open_high=True), y.shape)
    family = in_precision(family, y.dtype)
    return _estimates(family, y, noise_std, m)


@eqx.filter_jit
def _estimates(family, y, noise_std, m):
    starts = family.radius * _patterns(m).astype(y.dtype)
    length = y.shape[-1]
    from_each = jax.vmap(functools.partial(_descent, family), in_axes=(None, None, 0))

    def one(y, noise_std):
        records, misfit, done = from_each(y, noise_std, starts)
        best = jnp.argmin(misfit)
        return jnp.sort(records[best]), misfit[best], done[best]

    batch = y.shape[:-1]
    found = jax.vmap(one)(y.reshape(-1, length), noise_std.reshape(-1, length))
    return MultisetEstimate(*(x.reshape(*batch, *x.shape[1:]) for x in found))


@functools.cache
def _patterns(m):
    """Starts in units of the radius: some records at -1, some spread inside, some at 1."""
    rows = []
    for below in range(m + 1):
        for above in range(m + 1 - below):
            spread = np.linspace(-1, 1, m - below - above + 2)[1:-1]
            rows.append(np.concatenate([-np.ones(below), spread, np.ones(above)]))
    return np.stack(rows)


def _descent(family, y, noise_std, start):
    length, m = y.shape[0], start.shape[0]
    ulp = float(jnp.finfo(y.dtype).eps)

    def residual(z):
        return (jnp.mean(family.features(z, length, length), -1) - y) / noise_std

    def slopes(z):
        return family.slopes(z, length, length) / (m * noise_std[:, None])

    def step(state):
        z, misfit, damping, _, count = state
        r = residual(z)
        j, bend = jax.jvp(slopes, (z,), (jnp.ones_like(z),))
        gradient = jnp.sum(r[:, None] * j, 0)
        held = ((z <= -family.radius) & (gradient > 0)) | ((z >= family.radius) & (gradient < 0))
        # Where two records meet, the squares of the slopes alone have no curvature along their difference.
        curvature = small_product(j.T, j) + jnp.diag(jnp.maximum(jnp.sum(r[:, None] * bend, 0), 0))
        curvature = curvature + damping * jnp.diag(jnp.diagonal(curvature))
        free = ~held[:, None] & ~held
        matrix = jnp.where(free, curvature, jnp.eye(m, dtype=z.dtype))
        move = solve_positive(matrix, jnp.where(held, 0, -gradient))
        trial = jnp.clip(z + move, -family.radius, family.radius)
        tried = jnp.sum(residual(trial) ** 2) / 2
        helped = tried < misfit
        still = jnp.max(jnp.abs(trial - z)) <= 4 * ulp * family.radius
        moved = jnp.where(helped, trial, z)
        factor = jnp.where(helped, _DAMPING[1], _DAMPING[2]).astype(z.dtype)
        return moved, jnp.where(helped, tried, misfit), damping * factor, still, count + 1

    def unfinished(state):
        return ~state[3] & (state[4] < _STEPS)

    misfit = jnp.sum(residual(start) ** 2) / 2
    state = (start, misfit, jnp.asarray(_DAMPING[0], y.dtype), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    z, misfit, _, done, _ = jax.lax.while_loop(unfinished, step, state)
    return z, misfit, done
