"""Arguments that all of count_privacy shares: counts, shifts, tolerances."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from perfjax import _check
from perfjax._check import Numbers

__all__ = ["as_counts", "check_count", "check_ranges"]

RANGES = {
    "count": {"low": 0, "open_high": True},
    "other": {"low": 0, "open_high": True},
    "sigma": {"low": 0, "open_low": True, "open_high": True},
    "shift": {"low": 0, "open_low": True, "open_high": True},
    "relative_error": {"low": 0, "high": 1, "open_low": True, "open_high": True},
    "delta": {"low": 0, "high": 1, "open_low": True, "open_high": True},
    "order": {"low": 1, "open_low": True, "open_high": True},
}


def check_ranges(**named: Numbers) -> list[Float[Array, "..."]]:
    """The named values as float arrays of one dtype, each in the range that its name has everywhere in this package."""
    arrays = _check.as_floats(**named)
    _check.check_shapes(**dict(zip(named, arrays, strict=True)))
    return [
        _check.in_range(x, name, **RANGES.get(name, {"open_low": True, "open_high": True}))
        for name, x in zip(named, arrays, strict=True)
    ]


def check_count(value: int | float | np.number | Array | np.ndarray, name: str, *, low: int = 0) -> int:
    """`value` as a Python int of at least `low`, if it is one whole number."""
    number = np.asarray(value)
    if number.ndim or not np.issubdtype(number.dtype, np.number) or not number >= low or number != np.floor(number):
        raise _check.fail(name, f"be a whole number of at least {low}", _check.quoted(value))
    return int(number)


def as_counts(counts: Numbers, name: str = "counts") -> Float[Array, "..."]:
    """`counts` as a float array of whole numbers of at least 0; the first that is none is named with its row."""
    array = _check.as_float(counts, name)
    if isinstance(array, jax.core.Tracer):
        whole = jnp.where((array == jnp.floor(array)) & (array < jnp.inf), array, -1)  # a NaN stays no number >= 0
        return _check.in_range(whole, name, 0)
    found = np.asarray(array)
    bad = ~((found >= 0) & (found < np.inf) & (found == np.floor(found)))
    if np.any(bad):
        row = np.argwhere(np.atleast_1d(bad))[0]
        where = f" (row {row[0] + 1})" if found.ndim == 1 else ""
        shown = f"{np.atleast_1d(found)[tuple(row)]:g}{where}"
        raise _check.fail(name, "be whole numbers of at least 0", shown)
    return array
