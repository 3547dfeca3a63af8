"""Arguments that meet in one formula: one dtype for all, and one shape where the formula is elementwise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import as_float

__all__ = ["as_floats", "as_same_shape"]


def as_floats(**values: ArrayLike) -> list[Float[Array, "..."]]:
    """The values as arrays of one floating-point dtype, the widest; Python numbers follow the arrays."""
    arrays = {name: as_float(value, name) for name, value in values.items()}
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*values.values())
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return [jax.lax.convert_element_type(array, dtype) for array in arrays.values()]


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
