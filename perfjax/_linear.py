"""Products of arrays in full precision: left alone, a GPU may round the factors to ten bits."""

import functools

import jax
import jax.numpy as jnp

__all__ = ["product"]

product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
"""`a @ b`, with every digit of the dtype."""
