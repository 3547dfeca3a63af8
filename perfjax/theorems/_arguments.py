"""What the closed forms ask of their arguments: one floating dtype, and one range per name."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from perfjax._check import Range, as_choice, as_floats, in_range

__all__ = ["arguments", "checked", "net_leave", "per_user"]

_INFINITY = float("inf")
_UNIT: Range = {"low": 0.0, "high": 1.0}
_INSIDE_UNIT: Range = {**_UNIT, "open_low": True, "open_high": True}
_NOT_NEGATIVE: Range = {"low": 0.0}
_FINITE: Range = {"low": 0.0, "high": _INFINITY, "open_high": True}
_POSITIVE: Range = {"low": 0.0, "open_low": True}
_POSITIVE_FINITE: Range = {**_POSITIVE, "open_high": True}

_RANGES: dict[str, Range] = {
    "clip_radius": _POSITIVE,
    "covariance_eigenvalues": _POSITIVE_FINITE,
    "dim": {"low": 1.0, "open_high": True},
    "distance": _FINITE,
    "divergence": _NOT_NEGATIVE,
    "epsilon": _NOT_NEGATIVE,
    "error": _NOT_NEGATIVE,
    "failure_probability": _INSIDE_UNIT,
    "false_positive_rate": _INSIDE_UNIT,
    "first_error": _NOT_NEGATIVE,
    "growth": _FINITE,
    "leak_probability": _UNIT,
    "leave": _UNIT,
    "mean": _UNIT,
    "mean_norm": _FINITE,
    "noise_scale": _NOT_NEGATIVE,
    "order": _POSITIVE_FINITE,
    "perturbation": {"low": 0.0, "high": 0.5},
    "population": _FINITE,
    "precision_trace": _POSITIVE_FINITE,
    "rate": _UNIT,
    "recruit": _UNIT,
    "rounds": _FINITE,
    "threshold": {"open_low": True, "open_high": True},
}


def arguments(**named: ArrayLike) -> tuple[Float[Array, "..."], ...]:
    """`as_floats`, with each argument checked against the range that its name has in all of `theorems`."""
    arrays = as_floats(**named)
    return tuple(checked(x, name) for name, x in zip(named, arrays, strict=True))


def checked(value: Float[Array, "..."], name: str) -> Float[Array, "..."]:
    """`value`, if it lies in the range of `name`."""
    return in_range(value, name, **_RANGES[name])


def net_leave(q: Float[Array, "..."], r: Float[Array, "..."], recruiters: str) -> Float[Array, "..."]:
    """The leave probability that, with spared recruiters, gives the same survival condition p <= r/(q + r).

    When everyone recruits, 1 + r - q p = 1 + r - ((q - r) + r) p, so it is q - r; at q <= r no leak can
    shrink the population, which is what leave = 0 says.
    """
    if as_choice(recruiters, "recruiters", ("spared", "everyone")) == "spared":
        return q
    return jnp.where(q > r, q - r, 0.0)


def per_user(total: Float[Array, "..."], n: Float[Array, "..."]) -> Float[Array, "..."]:
    """total/n, infinite where nobody is left (0/0 would be NaN)."""
    return jnp.where(n > 0, total / jnp.where(n > 0, n, 1.0), jnp.inf)
