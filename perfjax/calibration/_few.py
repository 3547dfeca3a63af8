"""The next count of few users, exactly: a sum over who was leaked, and what became of these and of the others."""

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
    leaked, users, spared = _groups(n)
    of_leaked = np.arange(2 * SMALL + 1, dtype=np.int32)  # users that the leaked become
    side = jnp.where(end <= who.floor, 1, jnp.where(end >= who.cap, 2, 0)).astype(users.dtype)
    entry = jnp.clip(_index(end - inflow)[:, None] - of_leaked, -1, 2 * SMALL + 1) + 1

    def given_leaked(leave, recruit, leave_spared, recruit_spared):
        others = _with_tails(_become(leave_spared, recruit_spared))
        chances = others[side[:, None, None], spared[:, :, None], entry[:, None, :]]
        return jnp.sum(_become(leave, recruit) * chances, axis=-1)

    return _log(jnp.sum(jnp.where(leaked <= users, chance * _along_each(given_leaked, who), 0), axis=-1))


def log_few_flows(
    who: Participation,
    chance: Float[Array, "terms leaked"],
    n: Float[Array, " terms"],
    leavers: Float[Array, " terms"],
    joiners: Float[Array, " terms"],
) -> Float[Array, " terms"]:
    """log P(leavers, joiners) from up to `SMALL` users; -inf where it can't be."""
    leaked, users, spared = _groups(n)
    left, joined = (_index(jnp.minimum(x, 2 * SMALL))[:, None] for x in (leavers, joiners))
    ways = _of_both(who.leaked.leave, who.spared.leave, leaked, spared, left) * _of_both(
        who.leaked.recruit, who.spared.recruit, leaked, spared, joined
    )
    return _log(jnp.sum(jnp.where(leaked <= users, chance * ways, 0), axis=-1))


def _of_both(p_leaked, p_spared, leaked, spared, total) -> Float[Array, "terms leaked"]:
    """P(Binomial(leaked, p_leaked) + Binomial(spared, p_spared) = total)."""
    of_leaked = np.arange(SMALL + 1, dtype=np.int32)
    rest = total[:, :, None] - of_leaked
    chance = _binomials(p_spared)[spared[:, :, None], jnp.clip(rest, 0, SMALL)]
    return jnp.sum(_binomials(p_leaked) * jnp.where((rest >= 0) & (rest <= SMALL), chance, 0), axis=-1)


def _groups(n):
    """How many may be leaked, the users, and for each number leaked how many are spared; no users where many."""
    leaked = np.arange(SMALL + 1, dtype=np.int32)
    users = _index(jnp.where(n <= SMALL, n, 0))[:, None]
    return leaked, users, jnp.maximum(users - leaked, 0)


def _along_each(function, who):
    """`function` of the four rates with its derivatives taken once, not for every free parameter again."""
    rates = (*who.leaked, *who.spared)
    fixed = jax.lax.stop_gradient(rates)
    slopes = jax.jacfwd(function, argnums=tuple(range(len(rates))))(*fixed)
    moved = (slope * (rate - at) for slope, rate, at in zip(jax.lax.stop_gradient(slopes), rates, fixed, strict=True))
    return jax.lax.stop_gradient(function(*fixed)) + sum(moved)


def _log(p):
    return jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1)), -jnp.inf)


def _index(x):
    return jnp.round(x).astype(jnp.int32)


@jax.custom_jvp
def _binomials(p) -> Float[Array, "n k"]:
    """P(Binomial(n, p) = k) for n and k up to `SMALL`."""
    n, k = np.arange(SMALL + 1.0)[:, None], np.arange(SMALL + 1.0)
    ways = jnp.asarray(np.where(k <= n, scipy.special.binom(n, np.minimum(k, n)), 0), p.dtype)
    rest = jnp.asarray(np.maximum(n - k, 0), p.dtype)
    return ways * jnp.exp(xlogy(jnp.asarray(k, p.dtype), p) + xlog1py(rest, -p))


@_binomials.defjvp
def _binomials_jvp(primals, tangents):
    """By the table itself: powers of 0, the rate of a background that is not there, would have NaN for a slope."""
    chance = _binomials(*primals)
    fewer = jnp.pad(chance[:-1], ((1, 0), (0, 0)))  # of one trial less
    n = jnp.arange(SMALL + 1, dtype=chance.dtype)[:, None]
    return chance, tangents[0] * n * (jnp.pad(fewer[:, :-1], ((0, 0), (1, 0))) - fewer)


def _become(leave, recruit) -> Float[Array, "n m"]:
    """P(n users become m) for n up to `SMALL`: of each, whether it stays and whether it recruits."""
    n, m = SMALL + 1, 2 * SMALL + 1
    joined = np.arange(m)[:, None] - np.arange(n)  # for every number that stays
    recruits = jnp.where((joined >= 0) & (joined < n), _binomials(recruit)[:, np.clip(joined, 0, SMALL)], 0)
    return jnp.einsum("ns,nms->nm", _binomials(1 - leave), recruits, precision="highest")


def _with_tails(exactly) -> Float[Array, "side n entry"]:
    """P(m), P(at most m) and P(at least m), at m = entry - 1 from -1 to 2 SMALL + 1."""
    at_most = jnp.cumsum(exactly, axis=-1)
    at_least = jnp.cumsum(exactly[:, ::-1], axis=-1)[:, ::-1]
    return jnp.stack(
        [_ends(exactly, 0.0, 0.0), _ends(at_most, 0.0, 1.0), _ends(at_least, 1.0, 0.0)],
    )


def _ends(values, first, last):
    return jnp.pad(values, ((0, 0), (1, 1)), constant_values=((0, 0), (first, last)))
