"""Standard normals as fast as NumPy's on a CPU, in either precision."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

__all__ = ["normals"]

# cos and sin of an angle of at most pi/4, in powers of its square: exact to the last digit of float64.
COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))
SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))


def normals(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Independent N(0, 1), of a shape whose first length is even, by Box and Muller.

    In float64 `jax.random.normal`, `jnp.cos` and `jnp.sin` are not vectorised on a CPU and cost three times as much.
    """
    half = (shape[0] // 2, *shape[1:])
    radius_key, angle_key = jax.random.split(key)
    radius = jnp.sqrt(-2 * jnp.log1p(-jax.random.uniform(radius_key, half, dtype)))
    cosine, sine = _circle(jax.random.uniform(angle_key, half, dtype))
    return jnp.concatenate([radius * cosine, radius * sine])


def _circle(turn):
    """A point on the unit circle, at `turn` in [0, 1] turns from (-1, 0)."""
    quarter = (math.pi / 2) * (turn - 0.5)
    square = quarter * quarter
    cosine, sine = _powers(COSINE, square), quarter * _powers(SINE, square)
    for _ in range(2):  # doubling the angle, twice
        cosine, sine = cosine * cosine - sine * sine, 2 * sine * cosine
    return cosine, sine


def _powers(coefficients, x):
    """c_0 + c_1 x + c_2 x^2 + ..."""
    return functools.reduce(lambda sum, c: sum * x + c, reversed(coefficients), jnp.zeros_like(x))
