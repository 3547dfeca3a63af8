"""The next count of few users, exactly: a sum over who was leaked, who of them left and who of the others recruited."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import xlog1py, xlogy
from jaxtyping import Array, Float

from perfjax.law._nodes import SMALL
from perfjax.participation import Participation

__all__ = ["log_few", "log_few_flows"]


def log_few(
    who: Participation,
    chance: Float[Array, "terms leaked"],
    n: Float[Array, " terms"],
    end: Float[Array, " terms"],
    inflow: Float[Array, " terms"],
) -> Float[Array, " terms"]:
    """log P(the next count is `end`) from up to `SMALL` users; -inf where it can't be."""
    count, users, recruiters = _groups(who, n)
    joined = _index(end - inflow)[:, None] - users + count  # for every number of leavers
    side = jnp.where(end <= who.floor, 1, jnp.where(end >= who.cap, 2, 0)).astype(users.dtype)
    place = jnp.clip(joined, -1, SMALL + 1) + 1

    def given_leaked(leave, recruit):
        chances = _joined(recruit)[side[:, None, None], recruiters[:, :, None], place[:, None, :]]
        return jnp.sum(_binomials(leave) * chances, axis=-1)

    return _log(jnp.sum(chance * _along_each(given_leaked, who.leave, who.recruit), axis=-1))


def log_few_flows(
    who: Participation,
    chance: Float[Array, "terms leaked"],
    n: Float[Array, " terms"],
    leavers: Float[Array, " terms"],
    joiners: Float[Array, " terms"],
) -> Float[Array, " terms"]:
    """log P(leavers, joiners) from up to `SMALL` users; -inf where it can't be."""
    count, users, recruiters = _groups(who, n)
    left, joined = (_index(jnp.minimum(x, SMALL))[:, None] for x in (leavers, joiners))
    ways = _binomials(who.leave)[count, left] * _binomials(who.recruit)[recruiters, joined]
    return _log(jnp.sum(jnp.where(count <= users, chance * ways, 0), axis=-1))


def _groups(who, n):
    """How many may be leaked, the users, and for each number leaked how many recruit; no users where they are many."""
    count = np.arange(SMALL + 1, dtype=np.int32)
    users = _index(jnp.where(n <= SMALL, n, 0))[:, None]
    spared = jnp.maximum(users - count, 0)
    return count, users, spared if who.recruiters == "spared" else jnp.broadcast_to(users, spared.shape)


def _along_each(function, leave, recruit):
    """`function` with its two derivatives taken once: left alone, all its work is done for every free parameter."""
    q, r = jax.lax.stop_gradient((leave, recruit))
    value, by_leave = jax.jvp(lambda q: function(q, r), (q,), (jnp.ones_like(q),))
    _, by_recruit = jax.jvp(lambda r: function(q, r), (r,), (jnp.ones_like(r),))
    value, by_leave, by_recruit = jax.lax.stop_gradient((value, by_leave, by_recruit))
    return value + by_leave * (leave - q) + by_recruit * (recruit - r)


def _log(p):
    return jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1)), -jnp.inf)


def _index(x):
    return jnp.round(x).astype(jnp.int32)


def _binomials(p) -> Float[Array, "n k"]:
    """P(Binomial(n, p) = k) for n and k up to `SMALL`."""
    n, k = np.arange(SMALL + 1.0)[:, None], np.arange(SMALL + 1.0)
    ways = jnp.asarray(np.where(k <= n, scipy.special.binom(n, np.minimum(k, n)), 0), p.dtype)
    rest = jnp.asarray(np.maximum(n - k, 0), p.dtype)
    return ways * jnp.exp(xlogy(jnp.asarray(k, p.dtype), p) + xlog1py(rest, -p))


def _joined(p) -> Float[Array, "side n place"]:
    """P(k joined), P(at most k) and P(at least k) of n recruiters, at k = place - 1 from -1 to SMALL + 1."""
    exactly = _binomials(p)
    at_most = jnp.cumsum(exactly, axis=-1)
    at_least = jnp.cumsum(exactly[:, ::-1], axis=-1)[:, ::-1]
    return jnp.stack(
        [_ends(exactly, 0.0, 0.0), _ends(at_most, 0.0, 1.0), _ends(at_least, 1.0, 0.0)],
    )


def _ends(values, first, last):
    return jnp.pad(values, ((0, 0), (1, 1)), constant_values=((0, 0), (first, last)))
