"""Sweep files in TOML: what to run, on which scenario, over which axes."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfjax import _check, files
from perfjax.calibration import Ranges, load_ranges
from perfjax.law import population_law
from perfjax.meanfield import mean_field
from perfjax.montecarlo import simulate_counts, simulate_users
from perfjax.objectives import BY_NAME
from perfjax.scenario import Scenario
from perfjax.sweeps._grid import MOST_CELLS
from perfjax.tuning import tune

__all__ = ["SweepFile", "load_sweep"]

RUNS = {run.__name__: run for run in (tune, mean_field, population_law, simulate_counts, simulate_users)}
SAMPLERS = ("simulate_counts", "simulate_users")
KEYS = ("run", "preset", "scenario", "set", "arguments", "over", "pairing", "trials", "seed", "fields")
RANGE = ("start", "stop", "num", "scale")


class SweepFile(NamedTuple):
    """What a sweep file says.

    Attributes:
        run: the function, its arguments bound.
        scenario: the scenario to vary.
        over: numbers by axis.
        options: `pairing`, `trials` and `fields`, as arguments of `sweep`.
        seed: of the key, for a run that samples.
        ranges: what the fit in the scenario's file left open; None without one.
        read: the other files that were read.
    """

    run: Callable
    scenario: Scenario
    over: dict[str, list[float]]
    options: dict[str, Any]
    seed: int | None
    ranges: Ranges | None = None
    read: tuple[Path, ...] = ()


def load_sweep(path: str | os.PathLike) -> SweepFile:
    """Read a sweep file.

    Keys: `run`, the name of a function (`tune`, `mean_field`, `population_law`, `simulate_counts`, `simulate_users`);
    `preset`, or `scenario`, a file whose path is relative to the sweep's own; and the table `[over]`, each axis a list
    of numbers or a table of `start`, `stop`, `num` and, if wanted, `scale = "log"`. Optional: `[set]`, leaves of the
    scenario to replace; `[arguments]` of the run (`objective` by its name on the command line); `pairing`, `trials`,
    `fields` as in `sweep`; `seed`, an integer, 0 for a simulation by default.

    Args:
        path: the file.

    Returns:
        `SweepFile`: `sweep(file.run, file.scenario, file.over, key=jax.random.key(file.seed), **file.options)` runs it,
        without the key where `seed` is None.

    Raises:
        ValueError: if the file is no TOML, or a key is unknown or missing, or a value is bad; the file is named.
        OSError: if a file can't be read.
    """
    return files.read_toml(path, functools.partial(_build, folder=Path(path).parent))


def _build(content: dict[str, Any], folder: Path) -> SweepFile:
    _check.check_known(content, KEYS, "key")
    for name in ("run", "over"):
        if name not in content:
            raise ValueError(f"Missing key: `{name}`.")
    for name in ("preset", "scenario"):
        if not isinstance(content.get(name, ""), str):
            raise _check.fail(name, "be a text", content[name])
    run = _run(content)
    over = {name: _axis(name, values) for name, values in _table(content, "over").items()}
    if not isinstance(content.get("fields", []), list):
        raise _check.fail("fields", "be a list of names", _check.quoted(content["fields"]))
    options = {name: content[name] for name in ("pairing", "trials", "fields") if name in content}
    seed = content.get("seed", 0 if content["run"] in SAMPLERS else None)
    seed = None if seed is None else _check.as_count(seed, "seed", low=0)
    if seed is not None and seed >= 2**31:
        raise _check.fail("seed", "be below 2^31", seed)
    scenario = _scenario(content, folder)
    read = (folder / content["scenario"],) if "scenario" in content else ()
    ranges = load_ranges(*read) if read else None
    return SweepFile(run, scenario, over, options, seed, ranges, read)


def _run(content) -> Callable:
    """The function to run, with its arguments, which must be of its own."""
    _check.check_known([content["run"]], list(RUNS), "run")
    run, arguments = RUNS[content["run"]], dict(_table(content, "arguments"))
    parameters = inspect.signature(run).parameters
    given_apart = ("scenario", "key", "trials", "first_trial")  # by the sweep itself
    known = [name for name in parameters if name not in given_apart]
    _check.check_known(arguments, known, f"argument of {content['run']}:")
    if content["run"] == "tune":
        arguments = {"objective": "cumulative-error"} | arguments  # as `perfjax tune`: of every release
    if "objective" in arguments:
        _check.check_known([arguments["objective"]], list(BY_NAME), "objective")
        arguments["objective"] = BY_NAME[arguments["objective"]]()
    return functools.partial(run, **arguments) if arguments else run


def _table(content, name) -> dict[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise _check.fail(name, "be a table", _check.quoted(table))
    return table


def _scenario(content, folder) -> Scenario:
    if ("preset" in content) == ("scenario" in content):
        raise ValueError("Give either `preset` or `scenario`.")
    chosen = (
        files.preset(content["preset"]) if "preset" in content else files.load_scenario(folder / content["scenario"])
    )
    leaves = _table(content, "set")
    for name, value in leaves.items():
        if isinstance(value, dict):
            raise _check.fail(f"set.{name}", "be a value", "a table")
    return chosen.replace(**leaves)


def _number(value: Any, name: str) -> float:
    number = _check.in_dtype(value, np.float64) if not isinstance(value, bool) else value
    if not (isinstance(number, np.ndarray) and number.ndim == 0 and np.isfinite(number)):
        raise _check.fail(name, "be a finite number", _check.quoted(value))
    return float(number)


def _axis(name: str, values: Any) -> list[float]:
    """The numbers of an axis that is a list, or start, stop, num and scale."""
    if isinstance(values, list):
        return values
    if not isinstance(values, dict):
        raise _check.fail(f"over.{name}", "be a list, or a table of start, stop and num", _check.quoted(values))
    _check.check_known(values, RANGE, f"key of axis `{name}`:")
    missing = [part for part in RANGE[:3] if part not in values]
    if missing:
        raise ValueError(f"Axis `{name}` lacks `{'`, `'.join(missing)}`.")
    start, stop = (_number(values[part], f"over.{name}.{part}") for part in ("start", "stop"))
    num = _check.as_count(values["num"], f"{name}.num", low=1)
    if num > MOST_CELLS:
        raise _check.fail(f"{name}.num", "be at most 2^32", num)
    if _check.as_choice(values.get("scale", "linear"), f"{name}.scale", ("linear", "log")) == "linear":
        return np.linspace(start, stop, num).tolist()
    if not (start > 0 and stop > 0):
        raise ValueError(f"Axis `{name}` on a log scale must start and stop above 0.")
    return np.geomspace(start, stop, num).tolist()
