"""Standard normals: draws as fast as NumPy's on a CPU, in either precision, and a rule for expectations."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

__all__ = ["normals", "score_rule"]

# cos x and sin x / x for |x| <= pi/4, in powers of x^2: exact to the last digit of float64.
COSINE = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))
SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))


def normals(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Independent N(0, 1), by Box and Muller; the last length must be even.

    `jax.random.normal` takes twice the time in float64, where the inverse error function is slow, as are sin and cos.
    """
    uniform = jax.random.uniform(key, (2, *shape[:-1], shape[-1] // 2), dtype)
    radius = jnp.sqrt(-2 * jnp.log1p(-uniform[0]))
    cosine, sine = _on_circle(uniform[1])
    return jnp.concatenate([radius * cosine, radius * sine], axis=-1)


def _on_circle(turn):
    """The point of the unit circle that lies `turn` in [0, 1] turns from (-1, 0)."""
    quarter = (math.pi / 2) * (turn - 0.5)
    square = quarter * quarter
    cosine, sine = _power_series(COSINE, square), quarter * _power_series(SINE, square)
    for _ in range(2):  # twice the angle, twice
        cosine, sine = cosine * cosine - sine * sine, 2 * sine * cosine
    return cosine, sine


def _power_series(coefficients, x):
    """c_0 + c_1 x + c_2 x^2 + ..."""
    return functools.reduce(lambda sum, c: sum * x + c, reversed(coefficients), jnp.zeros_like(x))


def score_rule(reach: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in -reach..reach and weights for expectations over N(0, 1): the trapezoid rule."""
    score = np.linspace(-reach, reach, count)
    weight = np.exp(-(score**2) / 2)
    return score, weight / weight.sum()
