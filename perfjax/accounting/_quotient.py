"""A quotient whose derivative is finite wherever it can be."""

import jax
from jaxtyping import Array, Float

__all__ = ["quotient"]


@jax.custom_jvp
def quotient(x: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x / y."""
    return x / y


@quotient.defjvp
def _quotient_derivative(primals, tangents):
    # JAX's own rule squares y, which underflows from y = 1e-19 in float32.
    ratio = quotient(*primals)
    return ratio, (tangents[0] - ratio * tangents[1]) / primals[1]
