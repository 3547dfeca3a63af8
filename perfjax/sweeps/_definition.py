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
from perfjax.sweeps._grid import Grid
from perfjax.sweeps._program import Program

__all__ = ["definition", "differences"]


def definition(run: Callable, template: Scenario, grid: Grid, program: Program, key: Any) -> dict[str, str]:
    """Everything that the numbers of a sweep depend on."""
    import perfjax  # here, for its version: it imports this module

    axes = {f"axis_{name}": _axis(values) for name, values in grid.axes.items()}
    fields = (f"{name}: {field.dtype}{list(field.shape)}" for name, field in program.fields.items())
    return {
        "run": _described(run),
        "scenario": files.to_toml(template),
        "pairing": grid.pairing,
        **axes,
        "key": "none" if key is None else f"{jax.random.key_impl(key)} {jax.random.key_data(key).tolist()}",
        "dtype": str(template.population.dtype),
        "fields": ", ".join(fields),
        "block": str(program.block),
        "perfjax_version": perfjax.__version__,
        "jax_version": jax.__version__,
    }


def differences(there: dict[str, Any], here: dict[str, str]) -> list[str]:
    """What two definitions differ in, in words."""
    names = dict.fromkeys([*here, *(name for name in there if name.startswith("axis_"))])
    if there.get("dtype") != here["dtype"]:  # then every number differs in its last digits: say it once
        names = ("dtype", "run", "pairing", "key")
    return [
        f"`{name}` is {_short(there.get(name), here.get(name))} there, {_short(here.get(name), there.get(name))} here"
        for name in names
        if there.get(name) != here.get(name)
    ]


def _short(value: str | None, other: str | None) -> str:
    """`value`; of several lines, those that `other` has not."""
    if value is None:
        return "absent"
    lines = [line for line in value.splitlines() if line not in (other or "").splitlines()]
    return "; ".join(lines) or "shorter"


def _axis(values: np.ndarray) -> str:
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
    return " ".join(eqx.tree_pformat(value, short_arrays=False).split())
