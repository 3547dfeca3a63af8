"""Arguments that all of count_privacy shares: counts, shifts, tolerances."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from perfjax import _check
from perfjax._check import Numbers, Range

__all__ = ["as_counts", "check_count", "check_ranges", "exact_counts"]

LARGEST = 2**53  # of the counts that are released: float64 holds all whole numbers to there

RANGES: dict[str, Range] = {
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


def check_count(value: ArrayLike, name: str, *, low: int = 0) -> int:
    """`value` as a Python int of at least `low`, if it is one whole number."""
    number = np.asarray(value)
    if number.ndim or not np.issubdtype(number.dtype, np.number) or not number >= low or number != np.floor(number):
        raise _check.fail(name, f"be a whole number of at least {low}", _check.quoted(value))
    return int(number)


def as_counts(counts: Numbers, name: str = "counts") -> Float[Array, "..."]:
    """`counts` as a float array of whole numbers of at least 0; the first that is none is named with its row."""
    array = _check.as_float(counts, name)
    if not _check.is_known(array):
        whole = jnp.where((array == jnp.floor(array)) & (array < jnp.inf), array, -1)  # a NaN stays no number >= 0
        return _check.in_range(whole, name, 0)
    found = np.asarray(array)
    _check_each((found >= 0) & (found < np.inf) & (found == np.floor(found)), found, name, "of at least 0")
    return array


def exact_counts(counts: ArrayLike | list | tuple, name: str = "counts") -> np.ndarray:
    """`counts` as int64, none of them rounded; the first that is no whole number in [0, 2^53] is named with its row."""
    try:
        found = np.asarray(counts)
    except ValueError:  # ragged
        found = np.asarray(None)
    if found.dtype.kind not in "iuf":
        raise _check.fail(name, "be whole numbers in [0, 2^53]", _check.quoted(counts))
    _check_each((found >= 0) & (found <= LARGEST), found, name, "in [0, 2^53]")
    _check_each(found == np.floor(found), found, name, "in [0, 2^53]")
    return found.astype(np.int64)


def _check_each(good, found, name, wanted):
    if not np.all(good):
        row = np.argwhere(~np.atleast_1d(good))[0]
        where = f" (row {row[0] + 1})" if found.ndim == 1 else ""
        shown = f"{np.atleast_1d(found)[tuple(row)]:g}{where}"
        raise _check.fail(name, f"be whole numbers {wanted}", shown)
