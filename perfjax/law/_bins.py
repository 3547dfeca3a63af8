"""The spread of the population: bins that move with it and keep mass, mean and variance of what they hold.

With many users the population is far narrower than any nodes fixed beforehand: its variance there would be theirs. The
bins lie about the mean, a fraction of a standard deviation wide, and a run's next population is normal given the bin it
was in and what users share. So mean and variance go through a release in closed form, however narrow they are.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float

from perfjax._linear import product
from perfjax._square_root import square_root
from perfjax.law._kernel import Kernel, Moments
from perfjax.law._nodes import Grid, on_nodes
from perfjax.law._normal import density_and_tail
from perfjax.participation import Participation

__all__ = ["Spread", "quantile_of", "spread_of", "with_errors"]

FEW = 20  # users up to which every whole number has its own probability
EDGES = 15  # inner edges of the bins
SPACINGS = (0.55, 0.8)  # of the edges, in standard deviations: the finer is reported, both tell its error
LEAST_ERROR = 3e-3  # of the standard deviation: rows that are taken as normal, and the nodes for what users share
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # at which the error of quantiles is estimated
RARE = 1e-12  # a probability that plays no role


class Spread(NamedTuple):
    """The population after a release, as its spread and quantiles are read from it.

    Attributes:
        mean: in users.
        std: in users.
        few: P(n = k) for k = 0, 1, 2, ... users, held to floor and cap.
        at: populations above those, in ascending order.
        score: the standard normal quantile of P(n <= `at`), of runs above the few.
        astray: what runs in the lowest bin, however wide it is, contribute to the variance.
    """

    mean: Float[Array, ""]
    std: Float[Array, ""]
    few: Float[Array, " few"]
    at: Float[Array, " at"]
    score: Float[Array, " at"]
    astray: Float[Array, ""]


class _State(NamedTuple):
    """Probabilities of few users, and the mass, mean and variance of every bin above them."""

    few: Float[Array, " few"]
    mass: Float[Array, " bins"]
    mean: Float[Array, " bins"]
    variance: Float[Array, " bins"]


class _Normals(NamedTuple):
    """A mixture of normals."""

    weight: Float[Array, " normals"]
    mean: Float[Array, " normals"]
    variance: Float[Array, " normals"]

    @property
    def std(self) -> Float[Array, " normals"]:
        least = self.mean * jnp.finfo(self.mean.dtype).eps ** 0.75 + RARE
        wide = self.variance > least**2
        return jnp.where(wide, jnp.sqrt(jnp.where(wide, self.variance, 1)), least)


def spread_of(kernel: Kernel) -> Spread:
    """The population's spread at releases 1..T. Axes: releases, the two spacings, and its own."""
    scenario = kernel.scenario
    noise = scenario.noises()
    constant = kernel.moments(noise[0]) if not scenario.varies else None
    reach = (EDGES - 1) / 2 * jnp.asarray(SPACINGS, noise.dtype)
    scores = reach[:, None] * jnp.linspace(-1, 1, EDGES, dtype=noise.dtype)

    def step(states, at):
        t, x = at
        moments = kernel.moments(scenario.noise_of(kernel.sources, t, x)) if scenario.varies else constant
        return jax.vmap(lambda state, score: _released(kernel, moments, state, score))(states, scores)

    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(SPACINGS), *x.shape)), _start(kernel))
    return jax.lax.scan(step, start, (jnp.arange(noise.size - 1), noise[:-1]))[1]


def with_errors(spread: Spread, few: Float[Array, " few"], participation: Participation) -> tuple[Spread, Array, Array]:
    """The finer of two spreads from `spread_of`, and by release the estimated errors of `std` and of quantiles.

    Those of quantiles include half a user, for a population is a whole number.
    """
    levels = jnp.asarray(LEVELS, few.dtype)
    both = jax.vmap(jax.vmap(lambda at: quantile_of(at, few, participation, levels)))(spread)
    fine = jax.tree.map(lambda x: x[:, 0], spread)
    least = LEAST_ERROR * fine.std
    # Rare runs far below the others share one bin, and where these are at the cap hardly anything else varies.
    astray = jax.lax.cummax(fine.astray)
    some = astray > 0
    astray = jnp.where(some, astray / jnp.where(some, fine.std + square_root(astray), 1), 0)
    std_error = jnp.abs(jnp.diff(spread.std)[:, 0]) / 2 + least + astray
    return fine, std_error, jnp.max(jnp.abs(both[:, 1] - both[:, 0]), axis=-1) / 2 + 5 * least + 0.5


def quantile_of(
    spread: Spread, few: Float[Array, " few"], participation: Participation, p: Float[Array, "*p"]
) -> Float[Array, "*p"]:
    """The p-quantile. Of the few, half of a number's probability counts as below it, but all of it at the ends."""
    upper = jnp.cumsum(spread.few)
    below = upper - spread.few * jnp.where(few <= participation.floor, 0, jnp.where(few >= participation.cap, 1, 0.5))
    crowd = 1 - upper[-1]
    share = (p - upper[-1]) / jnp.where(crowd > RARE, crowd, 1)
    last = jnp.minimum(few[-1] + 0.5, participation.cap)
    among_few = _line(p, jnp.append(below, upper[-1]), jnp.append(few, last))
    return jnp.where((p <= upper[-1]) | (crowd <= RARE), among_few, _scored(share, spread.score, spread.at))


def _line(x, places, values):
    """Linear interpolation between few places, and their ends beyond them; quicker to compile than `jnp.interp`."""
    left = _left_of(x, places)
    return _between(x, places[left], places[left + 1], values[left], values[left + 1])


def _scored(p, scores, values):
    """Interpolation between standard scores, straight for a normal; from or to a probability of 0, linear in that."""
    z = _score(p)
    left = _left_of(z, scores)
    low, high, ends = scores[left], scores[left + 1], (values[left], values[left + 1])
    straight = (low <= _score(jnp.zeros_like(low))) | (high >= _score(jnp.ones_like(high)))
    return jnp.where(straight, _between(p, ndtr(low), ndtr(high), *ends), _between(z, low, high, *ends))


def _left_of(x, places):
    return jnp.clip(jnp.searchsorted(places, x, side="right", method="compare_all") - 1, 0, places.size - 2)


def _between(x, low, high, at_low, at_high):
    gap = high - low
    share = jnp.where(gap > 0, (x - low) / jnp.where(gap > 0, gap, 1), 0)
    share = jnp.where(share < 0, 0, jnp.where(share > 1, 1, share))
    return (1 - share) * at_low + share * at_high


def _score(p):
    """The standard normal's p-quantile, within its seven standard deviations."""
    return ndtri(jnp.clip(p, RARE, 1 - RARE))


def _start(kernel) -> _State:
    """One population: one of the few, or in the first bin."""
    start = kernel.start
    many = jnp.where(start <= FEW, 0, 1).astype(start.dtype)
    bins = jnp.zeros(EDGES + 3, start.dtype)
    return _State((1 - many) * on_nodes(_few(kernel.grid), start), bins.at[0].set(many), bins + start, bins)


def _few(grid: Grid) -> Float[Array, " few"]:
    return grid.nodes[: FEW + 1]


def _released(kernel, moments, state, scores) -> tuple[_State, Spread]:
    """The state after a release, with bins between the standard `scores` of the population then."""
    who, few = kernel.scenario.participation, _few(kernel.grid)
    normals, from_few = _following(kernel, moments, state)
    # Below `bottom` a normal counts as one of the few, or, where even the floor is above them, as at the floor.
    held = who.floor > FEW
    bottom = jnp.where(held, who.floor, FEW + 0.5)
    edges = jnp.concatenate([bottom[None], _edges(normals, bottom, scores), who.cap[None]])
    edges = jnp.clip(edges, bottom, jnp.maximum(who.cap, bottom))
    whole, mass, mean, variance, below, above = _binned(normals, edges)
    over = product(whole, on_nodes(few, who.bounded(jnp.arange(FEW + 1, dtype=few.dtype))))
    few_next = from_few + jnp.where(held, 0, over)
    at_floor = jnp.where(held, below[0], 0)
    following = _State(
        few_next,
        jnp.concatenate([at_floor[None], mass, above[-1:]]),
        jnp.concatenate([who.floor[None], mean, who.cap[None]]),
        jnp.pad(variance, 1),
    )
    share = jnp.maximum(jnp.sum(following.mass), RARE)
    low = at_floor + jnp.append(0, jnp.cumsum(mass))
    scored = jnp.where(low < above, _score(low / share), -_score(above / share))
    expected, std = _moments_of(following, few)
    astray = mass[0] * (variance[0] + (mean[0] - expected) ** 2)
    return following, Spread(expected, std, few_next, edges, scored, astray)


def _moments_of(state, few):
    """Mean and standard deviation."""
    mean = product(state.few, few) + product(state.mass, state.mean)
    variance = product(state.few, (few - mean) ** 2) + product(state.mass, state.variance + (state.mean - mean) ** 2)
    return mean, square_root(variance)


def _following(kernel, moments, state) -> tuple[_Normals, Float[Array, " few"]]:
    """The next population of runs that have many users now or will have them, and of those among the few twice.

    A bin acts through two populations, a standard deviation below and above its mean: together they have its mean and
    variance, and so has what becomes of them, to the second order of how growth varies within the bin.
    """
    who, nodes = kernel.scenario.participation, kernel.grid.nodes
    std = square_root(state.variance)
    places = who.bounded(jnp.stack([state.mean - std, state.mean + std]))
    growth, spread, weight = _interpolated(kernel, moments, places)
    low, high = places[..., None] * growth
    mean = (low + high) / 2
    variance = ((high - low) / 2) ** 2 + jnp.mean(places[..., None] * spread, axis=0)
    weight = state.mass[:, None] * jnp.mean(weight, axis=0)
    rows = product(state.few, moments.few_rows[: FEW + 1])
    out = nodes[FEW + 1 : 2 * FEW + 1]  # at most one recruit for each of the few
    normals = _Normals(
        jnp.append(rows[FEW + 1 : 2 * FEW + 1], weight), jnp.append(out, mean), jnp.append(0 * out, variance)
    )
    return normals, rows[: FEW + 1]


def _interpolated(kernel, moments: Moments, places):
    """Growth, spread and weights of what users share, at `places`: cubic between the populations of the kernel."""
    x = jax.lax.cummax(kernel.sources[:-1])
    table = jnp.stack([moments.growth, moments.spread, moments.weight], axis=1)[:-1]
    left = _left_of(places, x)
    before, right, after = jnp.maximum(left - 1, 0), left + 1, jnp.minimum(left + 2, x.size - 1)

    def secant(i, j):
        gap = (x[j] - x[i])[..., None, None]
        return gap, jnp.where(gap > 0, (table[j] - table[i]) / jnp.where(gap > 0, gap, 1), 0)

    (gap_0, slope_0), (gap_1, slope_1), (gap_2, slope_2) = (
        secant(before, left),
        secant(left, right),
        secant(right, after),
    )
    slope_left, slope_right = _slope(gap_0, slope_0, gap_1, slope_1), _slope(gap_2, slope_2, gap_1, slope_1)
    share = jnp.where(gap_1 > 0, (places - x[left])[..., None, None] / jnp.where(gap_1 > 0, gap_1, 1), 0)
    bend = gap_1 * share * (1 - share) * ((1 - share) * (slope_left - slope_1) - share * (slope_right - slope_1))
    return jnp.moveaxis(table[left] + share * gap_1 * slope_1 + bend, -2, 0)


def _slope(gap_outside, slope_outside, gap, slope):
    """The derivative between two secants, by the parabola through their ends; of one of them, if the other is empty."""
    both = gap_outside + gap
    mixed = (gap * slope_outside + gap_outside * slope) / jnp.where(both > 0, both, 1)
    return jnp.where(gap_outside > 0, mixed, slope)


def _edges(normals, bottom, scores) -> Float[Array, " edges"]:
    """Edges at standard `scores` of a log-normal with the mean and variance of the runs above `bottom`."""
    weight = normals.weight * jax.nn.sigmoid(1.6 * (normals.mean - bottom) / normals.std)
    share = jnp.sum(weight)
    any_run = share > RARE
    weight = weight / jnp.where(any_run, share, 1)
    mean = jnp.where(any_run, product(weight, normals.mean), bottom + 1)
    variance = product(weight, normals.variance + (normals.mean - mean) ** 2)
    width = jnp.sqrt(jnp.log1p(variance / mean**2) + jnp.finfo(mean.dtype).eps ** 1.5)
    return mean * jnp.exp(scores * width - width**2 / 2)


def _binned(normals, edges):
    """A mixture of normals rounded to 0, 1, ..., FEW; its mass, mean and variance in bins; mass below and above edges.

    The first of the `edges` is what rounds up beyond FEW.
    """
    std = normals.std[:, None]
    halves = jnp.arange(FEW, dtype=edges.dtype) + 0.5
    place = jnp.clip((jnp.append(halves, edges) - normals.mean[:, None]) / std, -37, 37)
    density, tail = density_and_tail(place)
    below = product(normals.weight, jnp.where(place > 0, 1 - tail, tail))
    whole = jnp.diff(below[: FEW + 1], prepend=jnp.zeros_like(below[:1]))
    place, density, tail = place[:, FEW:], density[:, FEW:], tail[:, FEW:]
    above = product(normals.weight, jnp.where(place > 0, tail, 1 - tail))
    return whole, *_moments_between(normals, edges, place, density, tail), below[FEW:], above


def _moments_between(normals, edges, place, density, tail):
    """Mass, mean and variance of a mixture of normals between `edges`, which in standard units are at `place`."""
    std, over = normals.std[:, None], place > 0
    low, high = tail[:, :-1], tail[:, 1:]
    mass = jnp.where(over[:, :-1], low - high, jnp.where(over[:, 1:], 1 - low - high, high - low))
    moment = place * density
    first = std * (density[:, :-1] - density[:, 1:])
    second = std**2 * (mass + moment[:, :-1] - moment[:, 1:])
    center = jnp.clip(product(normals.weight, normals.mean), edges[:-1], edges[1:])
    off = normals.mean[:, None] - center
    first, second = first + off * mass, second + 2 * off * first + off**2 * mass
    mass, first, second = (product(normals.weight, x) for x in (mass, first, second))
    held = mass > RARE
    share = jnp.where(held, mass, 1)
    first, second = jnp.where(held, first / share, 0), jnp.where(held, second / share, 0)
    return jnp.maximum(mass, 0), center + first, jnp.maximum(second - first**2, 0)
