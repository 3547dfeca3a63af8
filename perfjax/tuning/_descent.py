"""Descent on several parameters at once, each between two bounds."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

__all__ = ["Descent", "at_bound", "best_of", "descend"]

MEMORY = 20  # pairs that L-BFGS keeps
HALVINGS = 25  # of a step, before it is given up
SUFFICIENT = 1e-4  # share of the decrease that the slope promises
PATIENCE = 3  # steps in a row that gain nothing


class Descent(NamedTuple):
    """Where a descent ended.

    Attributes:
        place: the parameters.
        value: of the function there.
        slope: its gradient there, 0 where a bound is in the way.
        steps: spent.
    """

    place: Float[Array, " parameters"]
    value: Float[Array, ""]
    slope: Float[Array, " parameters"]
    steps: Int[Array, ""]


class _State(NamedTuple):
    place: Float[Array, " parameters"]
    value: Float[Array, ""]
    gradient: Float[Array, " parameters"]
    memory: optax.OptState
    steps: Int[Array, ""]
    idle: Int[Array, ""]


def at_bound(place: Float[Array, "*n"], low: Float[Array, "..."], high: Float[Array, "..."]) -> Int[Array, "*n"]:
    """-1 where a place is at the lower bound, 1 where it is at the upper one, else 0."""
    margin = 1e-5 * (high - low)
    return jnp.select([place <= low + margin, place >= high - margin], [-1, 1], 0)


def best_of(found: Descent) -> Descent:
    """The best of several descents, stacked."""
    return jax.tree.map(lambda x: x[jnp.argmin(jnp.where(jnp.isnan(found.value), jnp.inf, found.value))], found)


def _projected(gradient, place, low, high):
    """The gradient, 0 where to follow it would leave the bounds."""
    return jnp.where(((place <= low) & (gradient > 0)) | ((place >= high) & (gradient < 0)), 0, gradient)


def descend(
    value_and_gradient: Callable[[Float[Array, " parameters"]], tuple[Float[Array, ""], Float[Array, " parameters"]]],
    start: Float[Array, " parameters"],
    low: Float[Array, "..."],
    high: Float[Array, "..."],
    *,
    steps: int,
    tolerance: float | None = None,
) -> Descent:
    """A local minimum between `low` and `high`: directions by optax's L-BFGS, projected on the bounds.

    A step is halved until it decreases the value; optax's own line search knows no bounds. Where that fails, the
    memory is cleared: at a kink of the function past slopes mislead. It ends when no slope is above `tolerance`, by
    default 4e-10 in float64 and 7e-5 in float32.
    """
    optimizer = optax.scale_by_lbfgs(memory_size=MEMORY)
    flat = jnp.finfo(start.dtype).eps ** 0.6 if tolerance is None else tolerance

    def goes_on(state):
        slope = jnp.max(jnp.abs(_projected(state.gradient, state.place, low, high)))
        return (state.steps < steps) & (state.idle < PATIENCE) & (slope > flat)

    def step(state):
        slope = _projected(state.gradient, state.place, low, high)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            newton, memory = optimizer.update(slope, state.memory, state.place)
        assert isinstance(newton, jax.Array)  # to optax any tree
        along = jnp.where(slope == 0, 0, -newton.astype(start.dtype))
        along = jnp.where(jnp.vdot(along, slope) < 0, along, -slope)
        better, place, value, gradient = _searched(value_and_gradient, state, along, slope, low, high)
        fresh = optimizer.init(start)
        memory = jax.tree.map(lambda kept, new: jnp.where(better, kept, new).astype(new.dtype), memory, fresh)
        gained = better & (state.value - value > 4 * jnp.finfo(start.dtype).eps * (1 + jnp.abs(value)))
        return _State(place, value, gradient, memory, state.steps + 1, jnp.where(gained, 0, state.idle + 1))

    start = jnp.clip(start, low, high)
    zero = jnp.zeros((), jnp.int32)
    first = _State(start, *value_and_gradient(start), optimizer.init(start), zero, zero)
    end = jax.lax.while_loop(goes_on, step, first)
    return Descent(end.place, end.value, _projected(end.gradient, end.place, low, high), end.steps)


def _searched(value_and_gradient, state, along, slope, low, high) -> tuple[Bool[Array, ""], Array, Array, Array]:
    """Whether a step was found that decreases the value enough, and where it leads; else where it was."""

    def unfinished(search):
        found, halvings, _ = search
        return ~found & (halvings < HALVINGS)

    def shorter(search):
        _, halvings, _ = search
        place = jnp.clip(state.place + along * 0.5 ** halvings.astype(along.dtype), low, high)
        value, gradient = value_and_gradient(place)
        enough = value <= state.value + SUFFICIENT * jnp.vdot(slope, place - state.place)
        return enough & jnp.all(jnp.isfinite(gradient)), halvings + 1, (place, value, gradient)

    here = state.place, state.value, state.gradient
    found, _, there = jax.lax.while_loop(unfinished, shorter, (jnp.asarray(False), jnp.zeros((), jnp.int32), here))
    place, value, gradient = (jnp.where(found, new, old) for new, old in zip(there, here, strict=True))
    return found, place, value, gradient
