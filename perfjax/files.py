"""Scenario files in TOML, and the presets that ship with perfjax."""

import contextlib
import importlib.resources
import inspect
import json
import math
import os
import secrets
import signal
import threading
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from perfjax import _check
from perfjax.registry import KINDS, check_importable, importable_from, kind_named, name_of
from perfjax.scenario import PARTS, Scenario, arguments

__all__ = [
    "check_keys",
    "check_replaceable",
    "check_saveable",
    "load_scenario",
    "preset",
    "preset_names",
    "preset_text",
    "read_toml",
    "replacing",
    "save_scenario",
    "to_toml",
    "toml_value",
    "undisturbed",
]


def load_scenario(path: str | os.PathLike) -> Scenario:
    """Read a scenario from a TOML file.

    The file has `population` and `rounds`, and the tables `[mechanism]`, `[leakage]` (each with a `type`) and
    `[participation]`, whose keys are the arguments of these classes. It may have a `[policy]`, with a `type`, an
    `about` with a text, and a `[fit]`, which `calibration.load_ranges` reads. Numbers become arrays of JAX's default
    float dtype.

    A `type` is the name of a class of perfjax, or "my_module:MyMechanism": that module is imported, from anywhere that
    Python finds it or else from the folder of the file. So a file runs code; open none that you do not trust.

    Args:
        path: the file.

    Returns:
        The scenario.

    Raises:
        ValueError: if the file is no TOML, a key is unknown (with the nearest known one) or missing, a type can't be
            imported, or a value is out of range; the file is named.
        OSError: if the file can't be read.
    """
    with importable_from(Path(path).parent):
        return read_toml(path, _build)


def read_toml(path: str | os.PathLike, build: Callable[[dict[str, Any]], Any]) -> Any:
    """What `build` makes of a TOML file's content; a `ValueError` about either names the file."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from error
    return _built(text, str(path), build)


def save_scenario(scenario: Scenario, path: str | os.PathLike, *, about: str | None = None) -> None:
    """Write a scenario to a TOML file that `load_scenario` reads back exactly.

    Args:
        scenario: the scenario.
        path: the file; it is replaced whole or not at all.
        about: a text to keep with it.

    Raises:
        ValueError: if a part is of a class that no file can name, as one that a function or the running script defines.
        OSError: if the file can't be written.
    """
    check_saveable(scenario)
    with replacing(path) as temporary:
        temporary.write_text(to_toml(scenario, about=about), encoding="utf-8")


def check_saveable(scenario: Scenario) -> None:
    """Raise a `ValueError` if a file of `scenario` could not be read back."""
    for part in _tables(scenario):
        check_importable(type(getattr(scenario, part)))


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Generator[Path]:
    """A file in the same folder to write to, which takes the place of `path` once it is complete.

    A symbolic link stays, and what it leads to is replaced.

    Raises:
        ValueError: if `path` is there and no regular file: a device or a pipe would become one.
        OSError: if it can't be written; the error names `path`.
    """
    check_replaceable(path)
    asked, path = str(path), Path(os.path.realpath(path))
    # At random: process numbers are alike in containers. The suffix tells writers the format.
    temporary = path.with_name(f".perfjax-{secrets.token_hex(8)}{path.suffix}")
    with undisturbed():
        try:
            yield temporary
            os.replace(temporary, path)
        except OSError as error:
            if error.filename != str(temporary):
                raise
            raise OSError(error.errno, error.strerror, asked) from error  # nobody has heard of the temporary file
        finally:
            temporary.unlink(missing_ok=True)


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise a `ValueError` for what a file may not take the place of: a folder, a device, a pipe."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file.")


@contextlib.contextmanager
def undisturbed() -> Generator[None]:
    """Let SIGTERM wait until a file is whole: it would leave a part of one behind."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not ours:  # handlers belong to the main thread, and to whoever set another one
        yield
        return
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if asked:
            signal.raise_signal(signal.SIGTERM)


def preset(name: str) -> Scenario:
    """A scenario that ships with perfjax.

    Args:
        name: "mean-estimation" or "randomized-response", the settings of the published experiments; "breach-survey",
            mean estimation with the leave probability of a survey on breach notices.

    Returns:
        The scenario, in JAX's default float dtype.

    Raises:
        ValueError: for any other name.

    Example:
        >>> print(preset("breach-survey").participation.leave)
        0.11
    """
    _check.check_known([name], preset_names(), "preset")
    return _built(preset_text(name), f"preset {name}", _build)


def preset_names() -> list[str]:
    """The names that `preset` knows."""
    return sorted(file.name.removesuffix(".toml") for file in _presets().iterdir() if file.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The text of a preset's file, with its sources; `name` is one of `preset_names()`."""
    return _presets().joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _presets():
    return importlib.resources.files("perfjax") / "presets"


def _built(text: str, where: str, build: Callable[[dict[str, Any]], Any]) -> Any:
    try:
        return build(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{where}: not a TOML file: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _build(content: dict[str, Any]) -> Scenario:
    known = (*PARTS, "population", "rounds")
    check_keys(content, (*known, "policy", "about", "fit"), known, "key")
    if not isinstance(content.get("about", ""), str):
        raise _check.fail("about", "be a text", content["about"])
    parts: dict[str, Any] = {}
    for part in (name for name in KINDS if name in content):
        table = content[part]
        if not isinstance(table, dict):
            raise _check.fail(part, "be a table", _check.quoted(table))
        parts[part] = _build_part(part, dict(table))
    return Scenario(**parts, population=content["population"], rounds=content["rounds"])


def _build_part(part: str, table: dict[str, Any]) -> eqx.Module:
    kinds = KINDS[part]
    if "type" not in table and len(kinds) > 1:
        raise ValueError(f"Missing key `type` in [{part}]: one of {', '.join(kinds)}.")
    kind = kind_named(part, table.pop("type", next(iter(kinds))))
    parameters = inspect.signature(kind).parameters
    needed = [name for name, p in parameters.items() if p.default is p.empty]
    check_keys(table, parameters, needed, f"key in [{part}]")
    try:
        return kind(**table)
    except Exception as error:
        if kind in kinds.values() or isinstance(error, ValueError):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())  # of somebody's code
        raise ValueError(f"The {part} can't be made of the numbers in [{part}] ({reason}).") from error


def check_keys(table: Mapping[str, Any], known: Iterable[str], needed: Iterable[str], what: str) -> None:
    """Raise a `ValueError` for the first key of a table that is not known, or for those that are missing."""
    _check.check_known(table, list(known), what)
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(f"Missing {what}: `{'`, `'.join(missing)}`.")


def to_toml(scenario: Scenario, *, about: str | None = None) -> str:
    """The text of a scenario's file."""
    lines = [] if about is None else [f"about = {toml_value(about)}"]
    lines += [f"population = {toml_value(scenario.population)}", f"rounds = {scenario.rounds}"]
    for part in _tables(scenario):
        value = getattr(scenario, part)
        name = name_of(type(value))
        lines += ["", f"[{part}]"]
        if list(KINDS[part]) != [name]:
            lines.append(f"type = {toml_value(name)}")
        lines += [f"{name} = {toml_value(x)}" for name, x in arguments(value).items() if x is not None]
    return "\n".join(lines) + "\n"


def _tables(scenario):
    """The parts that a scenario's file has tables for."""
    return KINDS if scenario.policy is not None else PARTS


def toml_value(value: Any) -> str:
    """A text, number, list or array as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one escape that JSON lacks
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(x) for x in value)}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    return toml_value(np.asarray(value, dtype=float).tolist())
