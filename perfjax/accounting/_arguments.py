"""Arguments that meet in one elementwise formula: one dtype and one shape for all."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_floats

__all__ = ["as_same_shape"]


def as_same_shape(**values: ArrayLike) -> list[Float[Array, "..."]]:
    """`as_floats`, broadcast against each other.

    Raises:
        ValueError: if the shapes do not broadcast.
    """
    arrays = as_floats(**values)
    shapes = [array.shape for array in arrays]
    try:
        shape = jnp.broadcast_shapes(*shapes)
    except ValueError as error:
        names = ", ".join(f"`{name}`" for name in values)
        found = ", ".join(str(shape) for shape in shapes)
        raise ValueError(f"Arguments {names} must have shapes that broadcast, but have {found}.") from error
    return [jnp.broadcast_to(array, shape) for array in arrays]
