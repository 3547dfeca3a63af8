"""A plugin of pytest for the campaign: the tests that took little time last run first, of every file; the others after.

`MUTANTS_TIMES` names the JSON file with the seconds of each test. A run without a mutant adds to it.
"""

import functools
import json
import os
import pathlib

import pytest

QUICK = 2.0  # seconds
TIMES = pathlib.Path(os.environ["MUTANTS_TIMES"])
seconds: dict[str, float] = {}


@functools.cache
def known() -> dict[str, float]:
    """The seconds that tests took."""
    return json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """In two parts, each in the order of the files as they are given."""
    items.sort(key=lambda item: known().get(item.nodeid, 0) > QUICK)


def pytest_runtest_logreport(report):
    """Set-up included."""
    seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration


def pytest_sessionfinish(exitstatus):
    """Only of a run in which all tests passed: a mutant's times are its own."""
    if exitstatus == 0 and os.environ.get("MUTANTS_BASELINE"):
        TIMES.write_text(json.dumps(known() | seconds, indent=0), encoding="utf-8")
