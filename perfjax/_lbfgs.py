"""L-BFGS without bounds, of which the best iterate counts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

__all__ = ["least_iterate"]


def least_iterate(
    function: Callable[[Float[Array, " parameters"]], Float[Array, ""]],
    start: Float[Array, " parameters"],
    *,
    steps: int,
    memory_size: int = 10,
) -> tuple[Float[Array, " parameters"], Float[Array, ""]]:
    """The iterate of optax's L-BFGS with the least value, and that value; infinite if none is a number.

    The last iterate may be worse: once nothing is gained any more the memory holds differences of rounding errors, and
    steps along them go astray.
    """
    solver = optax.lbfgs(memory_size=memory_size)
    value_and_slope = optax.value_and_grad_from_state(function)

    def keep(place, value, best, least):
        better = value < least
        return jnp.where(better, place, best), jnp.where(better, value, least)

    def step(state, _):
        place, memory, *kept = state
        value, slope = value_and_slope(place, state=memory)
        kept = keep(place, value, *kept)
        update, memory = solver.update(slope, memory, place, value=value, grad=slope, value_fn=function)
        return (optax.apply_updates(place, update), memory, *kept), None

    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        first = start, solver.init(start), start, jnp.asarray(jnp.inf, start.dtype)
        (last, _, *kept), _ = jax.lax.scan(step, first, length=steps)
    return keep(last, function(last), *kept)
