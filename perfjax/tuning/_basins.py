"""Local minima of a function of one number: from the dips of a scan to certified places."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, DTypeLike, Float

__all__ = ["CERTIFICATE", "FINE", "NEARBY", "Basin", "certificate", "local_minima", "steps_of"]

FINE = 11  # points more between the neighbours of a minimum of the scan
NEARBY = 75  # points around the best minimum and it itself, the closer to it the denser, where no other may be lower
NEAREST, FARTHEST = 0.01, 2.0  # of these, in steps of the scan
LOWER = 5e-7  # of the log of the objective: half of what a certificate leaves to be gained
BASINS = 4
CERTIFICATE = (-8, -1, 1, 8)  # where slopes are compared around a minimum, in units of the least useful step


class Basin(NamedTuple):
    """A local minimum found inside a bracket of log noise."""

    place: Float[Array, ""]
    log_value: Float[Array, ""]
    gradient: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    slopes: Float[Array, " offsets"]  # around the place, at the offsets of CERTIFICATE


def local_minima(
    objective_at: Callable[[Float[Array, ""]], Float[Array, ""]],
    places: Float[Array, " scan"],
    values: Float[Array, " scan"],
    low: Float[Array, ""],
    high: Float[Array, ""],
) -> tuple[Basin, Bool[Array, ""]]:
    """The local minima of the scan, each refined, best first; and whether one was left out that may be the best.

    That is so where the scan saw one that was not followed, and where points around the best are lower, or show another
    minimum that may be: kinks closer together than the points of the search.
    """
    rounding = 16 * jnp.finfo(values.dtype).eps * (1 + jnp.abs(values))
    is_minimum = _is_minimum(values, rounding)
    found, index = jax.lax.top_k(jnp.where(is_minimum, -values, -jnp.inf), BASINS)
    left, right = jnp.maximum(index - 1, 0), jnp.minimum(index + 1, values.size - 1)
    unknown = jnp.full_like(found, jnp.nan)
    slopes = jnp.full((BASINS, len(CERTIFICATE)), jnp.nan, values.dtype)
    ends = jnp.maximum(places[left], low), jnp.minimum(places[right], high)
    start = Basin(places[index], jnp.where(jnp.isfinite(found), -found, jnp.inf), unknown, *ends, slopes)
    beside = values[left], values[right]

    def refine(state):
        i, count, basins, beside, least_left_out = state
        one, other = _closer(objective_at, *jax.tree.map(lambda x: x[i], (basins, *beside)))
        refined = _descend(objective_at, *(getattr(one, x) for x in ("place", "log_value", "low", "high")))
        basins = jax.tree.map(lambda x, new: x.at[i].set(new), basins, refined)
        # A second minimum between the same two points of the scan takes the next free place.
        more = jnp.isfinite(other.log_value)
        kept = more & (count < BASINS)
        slot = jnp.where(kept, count, BASINS)
        basins = jax.tree.map(lambda x, new: x.at[slot].set(new, mode="drop"), basins, other)
        beside = tuple(x.at[slot].set(jnp.inf, mode="drop") for x in beside)
        left_out = jnp.where(more & ~kept, other.log_value, jnp.inf)
        return i + 1, count + kept.astype(count.dtype), basins, beside, jnp.minimum(least_left_out, left_out)

    # One after another, as many as there are, mostly one to three: a vmap over four would pay for four.
    count = jnp.sum(jnp.isfinite(found))
    left_out = jnp.where(is_minimum, _lowest(values), jnp.inf).at[index].set(jnp.inf)
    state = jnp.zeros_like(count), count, start, beside, jnp.min(left_out)
    *_, basins, _, least = jax.lax.while_loop(lambda state: state[0] < state[1], refine, state)
    order = jnp.argsort(basins.log_value)
    basins = jax.tree.map(lambda x: x[order], basins)
    beside = jnp.geomspace(NEAREST, FARTHEST, NEARBY // 2, dtype=values.dtype) * (places[1] - places[0])
    around = jnp.clip(basins.place[0] + jnp.concatenate([-beside[::-1], jnp.zeros(1, values.dtype), beside]), low, high)
    beaten = _is_beaten(basins, around, jax.vmap(objective_at)(around))
    return basins, beaten | (least < basins.log_value[0])


def _is_beaten(basins, around, values):
    """Whether one of the values around the best basin is lower, or shows a minimum not followed that may be lower."""
    best = basins.log_value[0]
    apart = jnp.diff(around)
    reach = jnp.maximum(jnp.pad(apart, (1, 0)), jnp.pad(apart, (0, 1)))
    near = jnp.abs(around[:, None] - basins.place[None]) < reach[:, None]
    is_followed = jnp.any(near & jnp.isfinite(basins.log_value)[None], axis=1)
    others = _dips(values) & ~is_followed
    lower = values < best - max(LOWER, 64 * float(jnp.finfo(values.dtype).eps))
    return jnp.any(lower | (others & (_lowest(values) < best)))


def _neighbours(values, beyond):
    """The values before and after each; `beyond` the ends."""
    padded = jnp.pad(values, 1, constant_values=beyond)
    return padded[:-2], padded[2:]


def _lowest(values):
    """How low a minimum near each point may be: as far below it as it lies below the higher of its neighbours."""
    return values - jnp.minimum(jnp.maximum(*_neighbours(values, jnp.inf)) - values, 1)


def _dips(values):
    """Where values, not those at the ends, are below both neighbours' by what a search could lose."""
    rounding = 64 * jnp.finfo(values.dtype).eps * (1 + jnp.abs(values))
    return jnp.minimum(*_neighbours(values, -jnp.inf)) - values > jnp.maximum(LOWER / 5, rounding)


def _is_minimum(values, rounding):
    """Where values are below their neighbours', and below one of them by more than rounding, which dents a plateau."""
    before, after = _neighbours(values, jnp.inf)
    deep = jnp.maximum(before, after) - values > rounding
    return jnp.isfinite(values) & (values < before) & (values <= after) & deep


def _closer(objective_at, basin, value_low, value_high) -> tuple[Basin, Basin]:
    """The basin between closer neighbours, and another one between its ends, of infinite value if there is none."""
    grid = jnp.linspace(basin.low, basin.high, FINE + 2)
    inner = jax.vmap(objective_at)(grid[1:-1])
    values = jnp.concatenate([value_low[None], jnp.where(jnp.isnan(inner), jnp.inf, inner), value_high[None]])
    best = jnp.argmin(values)
    better = values[best] < basin.log_value
    place = jnp.where(better, grid[best], basin.place)
    # One of the grid can be the place itself but for rounding: no neighbour of it.
    apart = jnp.abs(grid - place) > (basin.high - basin.low) / (4 * (FINE + 1))
    low = jnp.max(jnp.where((grid < place) & apart, grid, basin.low))
    high = jnp.min(jnp.where((grid > place) & apart, grid, basin.high))
    one = basin._replace(place=place, log_value=jnp.where(better, values[best], basin.log_value), low=low, high=high)
    rounding = 16 * jnp.finfo(values.dtype).eps * (1 + jnp.abs(values))
    outside = (grid < low) | (grid > high)
    inside = jnp.arange(FINE + 2) % (FINE + 1) > 0
    left = jnp.where(_is_minimum(values, rounding) & outside & inside, values, jnp.inf)
    second = jnp.clip(jnp.argmin(left), 1, FINE)
    other = basin._replace(place=grid[second], log_value=left[second], low=grid[second - 1], high=grid[second + 1])
    return one, other


def _descend(objective_at, place, log_value, low, high) -> Basin:
    """Secant steps by optax from the scan's best point of a basin, kept inside a bracket.

    The bracket's ends have greater values than the best place, which is one of them once its slope is known: downhill
    from it there is a minimum before the other end. Every other step goes where the tangents at the ends meet, or else
    to the middle of the longer side: towards a smooth minimum that is about half way, but at a kink, where a secant
    creeps, it is the minimum itself. Then the slopes on both sides of the best place, for its certificate.
    """
    optimizer = optax.lbfgs(1.0, memory_size=1, linesearch=None)
    steps = steps_of(place.dtype)
    offsets = jnp.finfo(place.dtype).eps ** 0.5 * jnp.asarray(CERTIFICATE, place.dtype)

    def step(i, state):
        best, ends, x, memory, slopes = state
        here = _Tangent(x, *_slope(objective_at, x))
        searching = i < steps
        # Values that rounding could make of one another say nothing: then slopes decide.
        rounding = 16 * jnp.finfo(x.dtype).eps * (1 + jnp.abs(best.log_value))
        level = (jnp.abs(here.log_value - best.log_value) <= rounding) & jnp.isfinite(here.gradient + best.gradient)
        better = jnp.where(level, jnp.abs(here.gradient) < jnp.abs(best.gradient), here.log_value <= best.log_value)
        # At the best place itself the slope is news, though rounding may say that the value is worse.
        better = better | ((x == best.place) & ~jnp.isnan(here.log_value))
        worse = jax.tree.map(lambda x, y: jnp.where(better, x, y), best, here)
        best = _either(searching & better, here, best)
        below = jnp.where(level, worse.gradient < 0, worse.place < best.place)
        above = jnp.where(level, worse.gradient > 0, worse.place > best.place)
        ends = _either(searching & below, worse, ends[0]), _either(searching & above, worse, ends[1])
        ends = (
            _either(searching & (best.gradient <= 0), best, ends[0]),
            _either(searching & (best.gradient >= 0), best, ends[1]),
        )
        slopes = jnp.where(jnp.arange(offsets.size) == i - steps, here.gradient, slopes)
        known = jnp.where(jnp.isfinite(here.gradient), here.gradient, 0)  # or the secant would never recover
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            update, memory = optimizer.update(known, memory, x)
            secant = optax.apply_updates(x, update)
        assert isinstance(secant, jax.Array)  # to optax any tree
        target = jnp.where(i % 2 == 0, secant, _meeting(*ends))
        low, high = ends[0].place, ends[1].place
        inside = (target > low) & (target < high)
        farther = jnp.where(high - best.place > best.place - low, high, low)
        target = jnp.where(inside, target, (best.place + farther) / 2)
        probe = best.place + offsets[jnp.maximum(i + 1 - steps, 0)]
        return best, ends, jnp.where(i + 1 < steps, target, probe).astype(x.dtype), memory, slopes

    with jax.numpy_dtype_promotion("standard"):
        memory = optimizer.init(place)
    unknown = jnp.full_like(place, jnp.nan)
    ends = _Tangent(low, unknown, unknown), _Tangent(high, unknown, unknown)
    state = _Tangent(place, log_value, unknown), ends, place, memory, jnp.full_like(offsets, jnp.nan)
    best, ends, _, _, slopes = jax.lax.fori_loop(0, steps + offsets.size, step, state)
    return Basin(*best, low=ends[0].place, high=ends[1].place, slopes=slopes)


class _Tangent(NamedTuple):
    """Value and derivative at a place."""

    place: Float[Array, ""]
    log_value: Float[Array, ""]
    gradient: Float[Array, ""]


def _either(condition, one, other):
    return _Tangent(*(jnp.where(condition, x, y) for x, y in zip(one, other, strict=True)))


def _meeting(low, high):
    """Where two tangents meet; NaN as long as one of them is unknown."""
    rise = high.log_value - low.log_value - high.gradient * (high.place - low.place)
    return low.place + rise / (low.gradient - high.gradient)


def _slope(objective_at, place):
    """Value and derivative, forward: reverse mode would store every release for the sake of one number."""
    return jax.jvp(objective_at, (place,), (jnp.ones_like(place),))


def certificate(slopes: Float[Array, " offsets"]) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether the gradient changes sign around the minimum, and whether it jumps there instead of passing through 0."""
    near = jnp.finfo(slopes.dtype).eps ** 0.5
    jump, far_jump = slopes[2] - slopes[1], slopes[3] - slopes[0]
    changes = (slopes[1] <= 0) & (slopes[2] >= 0)
    # Through a smooth minimum the slope gains in proportion to the distance, 8 times as much; across a kink at once.
    kink = changes & (jump > 0.5 * far_jump) & (jump > near)
    return changes | ((slopes[0] <= 0) & (slopes[3] >= 0)), kink


def steps_of(dtype: DTypeLike) -> int:
    """Steps in each basin, enough for the rounding of the objective to be what limits the place of the minimum."""
    return 28 if dtype == jnp.float64 else 10
