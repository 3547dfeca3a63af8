"""Roots of increasing functions, one per array element, with implicit derivatives of every order."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

__all__ = ["increasing_root"]

_MAX_STEPS = 80
_MAX_STRIDE = 2.0  # while one side of the bracket is infinite; unknowns are of order 1 or logarithms

State = tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."], Bool[Array, "..."], Array]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def increasing_root(
    residual: Callable[..., Float[Array, "..."]],
    start: Float[Array, "..."],
    high: Float[Array, "..."],
    params: tuple[Float[Array, "..."], ...],
) -> Float[Array, "..."]:
    """The x with residual(x, *params) = 0, where `residual` acts elementwise and increases in x.

    Newton's method, with bisection wherever a step would leave the bracket. The derivative is the implicit
    one, so that no step of the search is differentiated.

    Args:
        residual: a function defined at module level; a closure would compile anew at every call.
        start: where the search begins; at most `high`.
        high: an upper bound of the root, possibly infinite.
        params: what the root depends on.
    """
    return _search(residual, start, high, params)


@increasing_root.defjvp
def _implicit_derivative(residual, primals, tangents):
    start, high, params = primals
    x = increasing_root(residual, start, high, params)
    _, slope = _with_slope(residual, x, params)
    _, push = jax.jvp(partial(residual, x), params, tangents[2])
    return x, -push / slope


@partial(jax.jit, static_argnums=0)
def _search(residual, start, high, params):
    # The last Newton step squares the error: one of this size leaves less than a rounding error, and asking
    # for less would wait for digits that the residual does not have.
    tolerance = float(jnp.finfo(start.dtype).eps) ** (2 / 3)

    def unfinished(state: State) -> Bool[Array, ""]:
        *_, done, steps = state
        return ~jnp.all(done) & (steps < _MAX_STEPS)

    def step(state: State) -> State:
        x, low, high, done, steps = state
        value, slope = _with_slope(residual, x, params)
        low, high = jnp.where(value < 0, x, low), jnp.where(value > 0, x, high)
        near = jnp.abs(value / slope) <= tolerance * jnp.maximum(jnp.abs(x), 1)
        # Rounding may put the last step just outside of the bracket: to bisect then would leave the root for good.
        last = jnp.clip(x - value / slope, low, high)
        moved = jnp.where(done, x, jnp.where(near, last, _next(x, value, slope, low, high)))
        done = done | near
        return moved, low, high, done, steps + 1

    low = jnp.full_like(start, -jnp.inf)
    state = (start, low, high, jnp.zeros(start.shape, bool), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, step, state)[0]


def _with_slope(residual, x, params):
    return jax.jvp(lambda x: residual(x, *params), (x,), (jnp.ones_like(x),))


def _next(x, value, slope, low, high):
    newton = x - value / slope
    # Both ends belong to the bracket: at convergence the step rounds to zero and x itself is an end.
    inside = (newton >= low) & (newton <= high)
    bounded = jnp.isfinite(low) & jnp.isfinite(high)
    middle = jnp.where(bounded, low / 2 + high / 2, x - jnp.sign(value) * _MAX_STRIDE)
    return jnp.where(inside & (bounded | (jnp.abs(newton - x) <= _MAX_STRIDE)), newton, middle)
