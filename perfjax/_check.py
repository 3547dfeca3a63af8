"""The check layer: every number that enters becomes a typed array, or one clear line says what is wrong with it.

A message has one form, whatever the argument: ``Argument `leave` must lie in [0, 1], but is 1.2.``
"""

import contextlib
import difflib
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PyTree

__all__ = [
    "Numbers",
    "Range",
    "as_choice",
    "as_count",
    "as_float",
    "as_floats",
    "as_kind",
    "as_level",
    "check_known",
    "check_shapes",
    "fail",
    "in_dtype",
    "in_precision",
    "in_range",
    "is_known",
    "one_dtype",
    "quoted",
    "whole",
]

Numbers = ArrayLike | list | tuple
"""What becomes a float array: a number, an array, or nested lists of numbers."""

_T = TypeVar("_T")


class Range(TypedDict, total=False):
    """What `in_range` takes beside a value and its name."""

    low: float
    high: float
    open_low: bool
    open_high: bool


def fail(name: str, requirement: str, value: object) -> ValueError:
    """The error for an argument that breaks its requirement, to be raised by the caller.

    A string describes the value ("of shape (2,)") and is shown as it is; one that is the value comes `quoted`.
    """
    return ValueError(f"Argument `{name}` must {requirement}, but is {_shown(value)}.")


def quoted(value: object) -> object:
    """`value`, in quotation marks if it is a string."""
    return f'"{value}"' if isinstance(value, str) else value


def as_float(value: Numbers, name: str) -> Float[Array, "..."]:
    """`value` as a floating-point array with a strong dtype.

    A Python number, an int array or a bool array takes JAX's default float dtype; a float array keeps its own.
    """
    if isinstance(value, str | bytes):  # NumPy would take it for the name of a type
        raise fail(name, "be a number or an array of numbers", quoted(value))
    # A number known now stays known under jit, where jnp.asarray would trace it and every later check with it.
    known = is_known(*jax.tree.leaves(value))
    try:
        with jax.ensure_compile_time_eval() if known else contextlib.nullcontext():
            array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise fail(name, "be a number or an array of numbers", quoted(value)) from error
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise fail(name, "be real", value)
    return _cast(array, array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float))


def as_floats(**named: Numbers) -> list[Float[Array, "..."]]:
    """The named values as float arrays of one dtype, the widest that a strongly typed one among them has.

    Python numbers and weakly typed arrays follow the others: converted one by one, 0.5 would become a float64 array
    under x64 and widen a float32 call (or fail it, under strict promotion).
    """
    arrays = [as_float(value, name) for name, value in named.items()]
    strong = [getattr(x, "dtype", None) for x in named.values() if not getattr(x, "weak_type", False)]
    strong = [dtype for dtype in strong if dtype is not None and jnp.issubdtype(dtype, jnp.floating)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = functools.reduce(jnp.promote_types, strong) if strong else jnp.result_type(float)
    return [_cast(array, dtype) for array in arrays]


def check_shapes(**arrays: Array) -> tuple[int, ...]:
    """The shape of the named arrays together; raise a `ValueError` if they do not broadcast."""
    shapes = [array.shape for array in arrays.values()]
    try:
        return jnp.broadcast_shapes(*shapes)
    except ValueError as error:
        names = ", ".join(f"`{name}`" for name in arrays)
        found = ", ".join(str(shape) for shape in shapes)
        raise ValueError(f"Arguments {names} must have shapes that broadcast, but have {found}.") from error


def as_count(value: object, name: str, *, low: int) -> int:
    """`value` as a Python int of at least `low`: something that fixes an array's shape."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < low:
        raise fail(name, f"be an integer of at least {low}", quoted(value))
    return int(value)


def as_level(value: float) -> float:
    """`value` as a Python float in (0, 1): the level of an interval."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number) or not 0 < value < 1:
        raise fail("level", "be a number in (0, 1)", quoted(value))
    return float(value)


def as_kind(value: object, name: str, kind: type[_T]) -> _T:
    """`value` if it is one of `kind`."""
    if not isinstance(value, kind):
        found = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        wanted = kind.__name__.removeprefix("Abstract")
        raise fail(name, f"be {'an' if wanted[0] in 'AEIOU' else 'a'} {wanted}", found)
    return value


def as_choice(value: str, name: str, choices: Iterable[str]) -> str:
    """`value` if it is one of `choices`."""
    choices = tuple(choices)
    if value not in choices:
        raise fail(name, "be " + " or ".join(f'"{choice}"' for choice in choices), quoted(value))
    return value


def in_range(
    value: Float[Array, "..."],
    name: str,
    low: int | float = -math.inf,
    high: int | float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> Float[Array, "..."]:
    """`value`, if all of it lies between `low` and `high`; the ends belong to the range unless said otherwise.

    A value known before tracing raises a `ValueError`; a traced one carries the check with it and raises when it runs.
    """
    above = (lambda x: x > low) if open_low else (lambda x: x >= low)
    below = (lambda x: x < high) if open_high else (lambda x: x <= high)
    interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    requirement = f"lie in {interval}"
    if not is_known(value):
        outside = ~(above(value) & below(value))
        return eqx.error_if(value, outside, f"Argument `{name}` must {requirement}.")
    concrete = np.asarray(value)
    inside = above(concrete) & below(concrete)  # NaN is inside no range
    if not np.all(inside):
        raise fail(name, requirement, concrete[~inside].flat[0] if concrete.ndim else concrete[()])
    return value


def whole(value: Float[Array, "..."], name: str) -> Float[Array, "..."]:
    """`value`, if all of it are whole numbers; raises as `in_range` does."""
    if not is_known(value):
        return eqx.error_if(value, value != jnp.round(value), f"Argument `{name}` must be a whole number.")
    concrete = np.asarray(value)
    broken = concrete != np.round(concrete)
    if np.any(broken):
        raise fail(name, "be a whole number", concrete[broken].flat[0] if concrete.ndim else concrete[()])
    return value


def is_known(*values: Any) -> bool:
    """Whether all values are known now, that is, none is traced."""
    return not any(isinstance(value, Tracer) for value in values)


def in_dtype(value: Any, dtype: DTypeLike) -> Any:
    """Python numbers as an array of `dtype`, anything else as it is: 0.5 is no reason to widen a computation."""
    numbers = jax.tree.leaves(value)
    plain = numbers and all(isinstance(x, int | float) and not hasattr(x, "dtype") for x in numbers)
    try:
        return np.asarray(value, dtype) if plain else value
    except (TypeError, ValueError, OverflowError):
        return value  # a table, ragged, or beyond any float: whoever takes it says so by its name


def one_dtype(tree: PyTree) -> PyTree:
    """`tree` with all of its float arrays in the widest dtype among them."""
    dtypes = [x.dtype for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    with jax.numpy_dtype_promotion("standard"):
        widest = functools.reduce(jnp.promote_types, dtypes)
    return in_precision(tree, widest)


def in_precision(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """`tree` with its float arrays in `dtype`."""
    return jax.tree.map(lambda x: _cast(x, dtype) if eqx.is_inexact_array(x) else x, tree)


def _cast(array: Array, dtype: DTypeLike) -> Float[Array, "..."]:
    with jax.ensure_compile_time_eval() if is_known(array) else contextlib.nullcontext():
        return jax.lax.convert_element_type(array, dtype)


def _nearest(name: object, known: Iterable[str]) -> str:
    """A hint that names the known spelling nearest to `name`, or all of them if none is near."""
    known = sorted(set(known))
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else "known are " + ", ".join(f"`{k}`" for k in known) + "."


def check_known(names: Iterable[object], known: Sequence[str], what: str) -> None:
    """Raise a `ValueError` for the first of `names` that is not `known`, with the nearest that is."""
    for name in names:
        if name not in known:
            raise ValueError(f"Unknown {what} `{name}`: {_nearest(name, known)}")


def _shown(value: object) -> str:
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        flat = np.asarray(value)
        return (
            f"{flat[()]:g}"
            if flat.ndim == 0 and flat.dtype.kind in "fiu"
            else _one_line(np.array2string(flat, threshold=6))
        )
    return _one_line(str(value))


def _one_line(text: str) -> str:
    return " ".join(text.split())
