"""Arguments that meet in one elementwise formula: one dtype and one shape for all."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_floats, check_shapes

__all__ = ["as_same_shape"]


def as_same_shape(**values: ArrayLike) -> list[Float[Array, "..."]]:
    """`as_floats`, broadcast against each other.

    Raises:
        ValueError: if the shapes do not broadcast.
    """
    arrays = as_floats(**values)
    shape = check_shapes(**dict(zip(values, arrays, strict=True)))
    return [jnp.broadcast_to(array, shape) for array in arrays]
