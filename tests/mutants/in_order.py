"""A plugin of pytest for the campaign.

`MUTANTS_ORDER` names a JSON list of tests to run in that order, after the others of `MUTANTS_FILES`, which are new.
`MUTANTS_NOTES` names a JSON file to write: of each test, the seconds it took, and which functions of perfjax it called.
What an earlier test of the same process had compiled, it did not call: notes say what to try first, not what can be
left out.
"""

import collections
import json
import os
import pathlib
import sys

import pytest

ORDER, FILES, NOTES = (os.environ.get(f"MUTANTS_{name}") for name in ("ORDER", "FILES", "NOTES"))
seconds, called = collections.defaultdict(float), {}


def pytest_collection_modifyitems(items):
    """In the order asked for, after those that no order knows, which are new."""
    if ORDER:
        rank = {test: k for k, test in enumerate(json.loads(pathlib.Path(ORDER).read_text(encoding="utf-8")))}
        files = FILES.split(os.pathsep)
        items[:] = [item for item in items if item.nodeid in rank or item.nodeid.partition("::")[0] in files]
        items.sort(key=lambda item: rank.get(item.nodeid, -1))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Note what a test calls."""
    codes = {}  # by id: to hash a code object itself takes long

    def note(frame, event, _):
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    if NOTES:
        sys.setprofile(note)
    yield
    if NOTES:
        sys.setprofile(None)
        parts = ((code.co_filename.rpartition("/perfjax/"), code.co_name) for code in codes.values())
        called[item.nodeid] = {f"{file}:{name}" for (_, inside, file), name in parts if inside}


def pytest_runtest_logreport(report):
    """Set-up included."""
    seconds[report.nodeid] += report.duration


def pytest_sessionfinish():
    """Write the notes."""
    if NOTES:
        notes = {test: [seconds[test], sorted(places)] for test, places in called.items()}
        pathlib.Path(NOTES).write_text(json.dumps(notes), encoding="utf-8")
