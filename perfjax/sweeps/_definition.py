"""What defines a sweep, as text: recorded with its results, and compared before a store is continued."""

import functools
import hashlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from perfjax import files
from perfjax.scenario import Scenario
from perfjax.sweeps._fingerprint import ADDRESS
from perfjax.sweeps._grid import Grid
from perfjax.sweeps._program import Traced

__all__ = ["CHANGED", "axis_text", "definition", "differences"]

CHANGED = "`run` computes something else than it did: its code, a default, or an object or global that it uses changed"


def definition(run: Callable, template: Scenario, grid: Grid, traced: Traced, key: Any) -> dict[str, str]:
    """Everything that the numbers of a sweep depend on, in words; a store adds a digest of what the run computes."""
    import perfjax  # here, for its version: it imports this module

    axes = {f"axis_{name}": axis_text(values) for name, values in grid.axes.items()}
    fields = (f"{name}: {field.dtype}{list(field.shape)}" for name, field in traced.fields.items())
    return {
        "run": _described(run),
        "scenario": files.to_toml(template),
        "pairing": grid.pairing,
        "axes": ", ".join(grid.dims),  # in their order, by which cells are numbered and stored
        **axes,
        "key": "none" if key is None else f"{jax.random.key_impl(key)} {jax.random.key_data(key).tolist()}",
        "dtype": str(template.population.dtype),
        "fields": ", ".join(fields),
        "perfjax_version": perfjax.__version__,
        "jax_version": jax.__version__,
    }


def differences(there: dict[str, Any], here: dict[str, str]) -> list[str]:
    """What two definitions differ in, in words."""
    names = dict.fromkeys([*here, *(name for name in there if name.startswith("axis_"))])
    if there.get("dtype") != here["dtype"]:  # then every number differs in its last digits: say it once
        names = ("dtype", "run", "pairing", "key")
    different = [name for name in names if there.get(name) != here.get(name)]
    if different == ["program"]:
        return [CHANGED]
    if any(name.startswith("axis_") for name in different):  # then their list differs if one is missing: say it once
        different = [name for name in different if name != "axes"]
    return [
        f"`{name}` is {_short(there.get(name), here.get(name))} there, {_short(here.get(name), there.get(name))} here"
        for name in different
        if name != "program"  # which differs wherever something else does
    ]


def _short(value: str | None, other: str | None) -> str:
    """`value`; of several lines, those that `other` has not."""
    if value is None:
        return "absent"
    lines = [line for line in value.splitlines() if line not in (other or "").splitlines()]
    return "; ".join(lines) or "shorter"


def axis_text(values: np.ndarray) -> str:
    """An axis by its ends, and a digest of its values."""
    return f"{len(values)} values from {values[0]:g} to {values[-1]:g} ({_digest(values.tobytes())})"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _described(run: Callable) -> str:
    """A function by its name, its bound arguments, and, unless it is perfjax's own, a digest of its code."""
    if isinstance(run, functools.partial):
        arguments = [
            *map(_value, run.args),
            *(f"{name}={_value(value)}" for name, value in sorted(run.keywords.items())),
        ]
        return f"{_described(run.func)}({', '.join(arguments)})"
    function = inspect.unwrap(run)
    code = getattr(function, "__code__", None)
    if code is None:
        return _value(function)
    name = f"{function.__module__}.{function.__qualname__}"
    if name.startswith("perfjax."):
        return ".".join(part for part in name.split(".") if not part.startswith("_"))
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    return f"{name} ({_digest(repr((_code(code), list(map(_value, closure)))).encode())})"


def _code(code: types.CodeType) -> tuple[Any, ...]:
    constants = (_code(x) if isinstance(x, types.CodeType) else repr(x) for x in code.co_consts)
    return code.co_code, code.co_names, tuple(constants)


def _value(value: Any) -> str:
    """A number, array, objective or function as text that tells two of them apart."""
    if isinstance(value, types.FunctionType | functools.partial):
        return _described(value)
    return ADDRESS.sub("", " ".join(eqx.tree_pformat(value, short_arrays=False).split()))
