"""Kinds of parts by their names in files: perfjax's own by a short one, all others by where they are imported from."""

import contextlib
import importlib
import importlib.machinery
import inspect
import operator
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

from perfjax import _check, leakage, mechanisms, participation, policies, scenario

__all__ = ["KINDS", "check_importable", "importable_from", "kind_named", "name_of"]


def _of_perfjax(module: ModuleType, base: type) -> dict[str, type]:
    found = {name: getattr(module, name) for name in module.__all__ if not name.startswith("Abstract")}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, base)}


BASES = scenario.BASES | {"policy": policies.AbstractPolicy}
KINDS = {
    part: _of_perfjax(module, base)
    for (part, base), module in zip(BASES.items(), (mechanisms, leakage, participation, policies), strict=True)
}
"""perfjax's own kinds of each part, by name."""


def name_of(kind: type) -> str:
    """The name of a kind in a file: a short one for perfjax's own, else `module:name`."""
    if any(kind is own for kinds in KINDS.values() for own in kinds.values()):
        return kind.__name__
    return f"{kind.__module__}:{kind.__qualname__}"


def check_importable(kind: type) -> None:
    """Raise a `ValueError` for a kind that no other process could import by its name."""
    name, module = name_of(kind), sys.modules.get(kind.__module__)
    if ":" not in name:
        return
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        where = "the running script" if kind.__module__ == "__main__" else "a function"
        raise ValueError(
            f"A file can't name `{kind.__qualname__}`, which {where} defines: put it in a module of its own."
        )
    try:
        there = operator.attrgetter(kind.__qualname__)(module)
    except AttributeError:
        there = None
    if there is not kind:
        raise ValueError(f"A file can't name `{kind.__qualname__}`: `{name}` is something else by now, or not there.")


def kind_named(part: str, name: object) -> type:
    """The kind of a part (a key of `KINDS`) that a file calls `name`.

    Raises:
        ValueError: for a name that is neither one of perfjax's nor `module:name` of a class that can be imported and is
            a kind of the part.
    """
    if not isinstance(name, str) or ":" not in name:
        _check.check_known([name], list(KINDS[part]), f"type in [{part}]")
        return KINDS[part][str(name)]
    module, _, path = name.partition(":")
    try:
        _check_not_another(module)
        kind = operator.attrgetter(path)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # the module is somebody's code
        what, reason = (" ".join(text.split()) for text in (name, f"{type(error).__name__}: {error}"))
        raise ValueError(f"The type in [{part}] can't be imported: `{what}` ({reason}).") from error
    base = BASES[part]
    abstract = inspect.isabstract(kind) or (kind is base and base is not participation.Participation)
    if not isinstance(kind, type) or not issubclass(kind, base) or abstract:
        raise ValueError(f"The type in [{part}] must be a class of {base.__name__}, but `{name}` is not.")
    return kind


def _check_not_another(module: str) -> None:
    """Raise an `ImportError` where a module of this name was imported from elsewhere: Python would take that one."""
    there = getattr(sys.modules.get(module), "__file__", None)
    if there is None or "." in module:
        return
    found = importlib.machinery.PathFinder.find_spec(module)
    if found is not None and found.origin is not None and Path(found.origin).resolve() != Path(there).resolve():
        raise ImportError(f"a module of this name was imported from {Path(there).parent}")


@contextlib.contextmanager
def importable_from(folder: Path) -> Generator[None]:
    """Let modules be imported that lie in a folder, after all that can be imported anyway."""
    place = str(folder.resolve())
    if place in sys.path:
        yield
        return
    sys.path.append(place)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a module may have changed it
            sys.path.remove(place)
