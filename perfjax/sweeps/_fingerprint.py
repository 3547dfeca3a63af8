"""What a run computes, as a digest: of the program that JAX traces it to, with every constant in it.

The program holds whatever the run looks up while it is traced: its code, defaults, bound arguments and objects,
closure, globals, and theirs. So the digest changes with each of them that matters, and with none that does not. Only
what is called back from the program stays outside of it.
"""

import functools
import hashlib
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

__all__ = ["fingerprint"]

CALLBACKS = ("pure_callback", "io_callback")  # those whose results the numbers depend on
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def fingerprint(program: core.ClosedJaxpr) -> str:
    """A digest that tells two programs apart, the same in every process.

    Args:
        program: a traced run.

    Returns:
        Text of a few letters.

    Raises:
        ValueError: if the program calls back into Python code that isn't a library's: no digest could tell whether what
            it computes has changed.
    """
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return _digest(_described(program, {}))[:16]


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _described(value: Any, known: dict[int, str]) -> Any:
    """A program or one of its parts as nested tuples of text; `known` holds digests of programs that occur again."""
    describe = functools.partial(_described, known=known)
    if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
        program = getattr(value, "jaxpr", value)  # itself in newer JAX, where the two are one class
        if id(program) not in known:
            known[id(program)] = _digest(_equations(program, describe))
        return known[id(program)], tuple(map(_array, getattr(value, "consts", ())))
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _array(value)
    if isinstance(value, tuple | list):
        return tuple(map(describe, value))
    if isinstance(value, dict):
        return tuple(sorted((str(name), describe(part)) for name, part in value.items()))
    return ADDRESS.sub("", repr(value))


def _equations(program: core.Jaxpr, describe) -> tuple[Any, ...]:
    numbers: dict[core.Var, int] = {}

    def named(variables) -> tuple[Any, ...]:
        return tuple(
            _array(x.val) if isinstance(x, core.Literal) else (numbers.setdefault(x, len(numbers)), str(x.aval))
            for x in variables
        )

    inputs = named([*program.constvars, *program.invars])
    steps = tuple(_step(step, named, describe) for step in program.eqns)
    return inputs, steps, named(program.outvars)


def _step(step: core.JaxprEqn, named, describe) -> tuple[Any, ...]:
    if step.primitive.name in CALLBACKS:
        _check_callback(step.params["callback"])
    return step.primitive.name, describe(step.params), named(step.invars), named(step.outvars)


def _array(value: Any) -> tuple[Any, ...]:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), _array(jax.random.key_data(value))
    array = np.asarray(value)
    return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()


def _check_callback(callback: Any) -> None:
    function = getattr(callback, "callback_func", callback)
    code = getattr(function, "__code__", None)
    library = code is not None and {"site-packages", "dist-packages"} & set(Path(code.co_filename).parts)
    if not library and not str(getattr(function, "__module__", "")).startswith(("perfjax.", "jax.")):
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ValueError(
            f"A run that calls back into Python (`{name}`) can't have a store: what it computes may change unseen."
        )
