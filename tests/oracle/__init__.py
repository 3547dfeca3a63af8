"""Reference values, computed without JAX and without perfjax, as JSON; `cases` reads them."""

import functools
import json
from pathlib import Path
from typing import Any

__all__ = ["cases", "cases_of_item", "kinds"]


def cases(file: str, kind: str) -> list[dict[str, Any]]:
    """The cases of one kind in `<file>.json`: dicts of name, kind, inputs, value, tol (relative) and how."""
    found = [case for case in _read(file) if case["kind"] == kind]
    if not found:
        raise KeyError(f"no cases of kind {kind!r} in {file}.json")
    return found


def kinds(file: str) -> set[str]:
    """The kinds of cases in `<file>.json`."""
    return {case["kind"] for case in _read(file)}


def cases_of_item(file: str, item: int) -> list[dict[str, Any]]:
    """The cases of one numbered item in `<file>.json`: dicts of id, item, what, inputs, value, rtol, atol and how."""
    found = [case for case in _read(file) if case["item"] == item]
    if not found:
        raise KeyError(f"no cases of item {item} in {file}.json")
    return found


@functools.cache
def _read(file: str) -> list[dict[str, Any]]:
    return json.loads((Path(__file__).parent / f"{file}.json").read_text())["cases"]
