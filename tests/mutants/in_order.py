"""A plugin of pytest for the campaign.

`MUTANTS_ORDER` names a JSON list of tests to run in that order, before all others. `MUTANTS_NOTES` names a JSON file to
write: of each test, the seconds it took, and which functions of perfjax it called. What an earlier test of the same
process had compiled, it did not call: notes say what to try first, not what can be left out.
"""

import collections
import json
import os
import pathlib
import sys

import pytest

ORDER, NOTES = (os.environ.get(name) for name in ("MUTANTS_ORDER", "MUTANTS_NOTES"))
seconds, called = collections.defaultdict(float), collections.defaultdict(set)
places = {}  # of code objects, which are kept so that no other one gets their id


def pytest_collection_modifyitems(items):
    """In the order asked for."""
    if ORDER:
        tests = json.loads(pathlib.Path(ORDER).read_text(encoding="utf-8"))
        rank = {test: k for k, test in enumerate(tests)}
        items.sort(key=lambda item: rank.get(item.nodeid, len(rank)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Note what a test calls."""
    if not NOTES:
        yield
        return
    here = called[item.nodeid]

    def note(frame, event, _):
        if event == "call":
            code = frame.f_code
            if id(code) not in places:
                _, inside, file = code.co_filename.rpartition("/perfjax/")
                places[id(code)] = code, f"{file}:{code.co_qualname.partition('.<locals>')[0]}" if inside else None
            here.add(places[id(code)][1])

    sys.setprofile(note)
    yield
    sys.setprofile(None)


def pytest_runtest_logreport(report):
    """Set-up included."""
    seconds[report.nodeid] += report.duration


def pytest_sessionfinish():
    """Write the notes."""
    if NOTES:
        notes = {test: [taken, sorted(called[test] - {None})] for test, taken in seconds.items()}
        pathlib.Path(NOTES).write_text(json.dumps(notes), encoding="utf-8")
